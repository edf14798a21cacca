"""A real deployment on this machine: every process is started from its script and ended by its pid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support import ROOT

PATIENCE = 600
"""Seconds that any single step may take."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def children(pid: int) -> list[int]:
    """Return the pids of a process's descendants, deepest last."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *children(int(child))]
    return found


@dataclass
class Deployment:
    """A folder that ``fedcue flower init`` wrote, and the processes started from it."""

    folder: Path
    nodes: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    families: dict[str, list[int]] = field(default_factory=dict)

    def init(self, *settings: str) -> None:
        ports = ["--port", str(free_port())]
        command = [
            sys.executable,
            "-m",
            "fedcue",
            "flower",
            "init",
            str(self.folder),
            "--nodes",
            str(self.nodes),
        ]
        done = subprocess.run(
            [*command, *ports, *settings], env=environment(), capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        for number in range(1, self.nodes + 1):
            script = self.folder / f"node-{number}" / "supernode.sh"
            script.write_text(
                script.read_text().replace(f"--port {9093 + number} ", f"--port {free_port()} ")
            )

    def start(self, name: str, script: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(self.folder / script), *arguments], stdout=log, stderr=log, env=environment(**more)
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def start_superlink(self) -> None:
        before = self.log("superlink").count("Uvicorn running") if "superlink" in self.processes else 0
        self.start("superlink", "server/superlink.sh")
        until(lambda: self.log("superlink").count("Uvicorn running") > before, "the SuperLink")

    def start_node(self, number: int, **more: str) -> None:
        self.start(f"node-{number}", f"node-{number}/supernode.sh", **more)

    def kill(self, name: str) -> None:
        """End a process with SIGKILL, and then whatever it had started."""
        process = self.processes[name]
        family = [process.pid, *children(process.pid)]
        for pid in family:
            with_pid(pid, signal.SIGKILL)
        process.wait(30)

    def run(self, out: str, settings: str, **config: str | float) -> subprocess.Popen[bytes]:
        values = {"settings": settings, "out": str(self.folder / "runs" / out), **config}
        text = " ".join(f"{k}='{v}'" if isinstance(v, str) else f"{k}={v}" for k, v in values.items())
        return self.start(f"run-{out}", "server/run.sh", "--run-config", text)

    def result(self, out: str) -> Path:
        folder = self.folder / "runs" / out
        until((folder / "summary.json").exists, f"the run {out}:\n{self.log(f'run-{out}')[-2000:]}")
        return folder

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)


def with_pid(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [more.pop("first", ""), str(ROOT / "src")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}
