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

OUTSIDE = "127.0.0.2"
"""Another address of this machine: whoever connects to it is not on the SuperLink's loopback."""

PATIENCE = 600
"""Seconds that any single step may take."""
READY = "nodes may connect to"
"""What the gate says when the SuperLink answers."""
JOINED = "SuperNode ID:"
"""What a SuperNode says when the SuperLink has let it in."""


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
    port: int = field(default_factory=lambda: free_port())
    superlink_port: int = field(default_factory=lambda: free_port())
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    families: dict[str, list[int]] = field(default_factory=dict)

    def init(self, *settings: str) -> None:
        place = ["--host", OUTSIDE, "--port", str(self.port), "--superlink-port", str(self.superlink_port)]
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
            [*command, *place, *settings], env=environment(), capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        for number in range(1, self.nodes + 1):
            script = self.folder / f"node-{number}" / "supernode.sh"
            script.write_text(script.read_text().replace(f"port={9093 + number}", f"port={free_port()}"))

    def begin(self) -> None:
        """Write the deployment and start its SuperLink and nodes."""
        self.init()
        self.start_superlink()
        assert self.start("register", "server/register.sh").wait(PATIENCE) == 0
        for number in range(1, self.nodes + 1):
            self.start_node(number)

    def start(self, name: str, script: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(self.folder / script), *arguments],
                stdout=log,
                stderr=log,
                env=environment(**more),
                start_new_session=True,
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def start_superlink(self, **more: str) -> None:
        """Start the SuperLink and the gate, and wait until nodes may connect."""
        before = self.log("superlink").count(READY) if "superlink" in self.processes else 0
        process = self.start("superlink", "server/superlink.sh", **more)

        def ready() -> bool:
            assert process.poll() is None, self.log("superlink")
            return self.log("superlink").count(READY) > before

        until(ready, "the SuperLink")

    def start_node(self, number: int, **more: str) -> None:
        """Start a SuperNode, and again as long as the SuperLink takes the one before it to be alive."""
        name = f"node-{number}"
        before = self.log(name).count(JOINED) if name in self.processes else 0

        def joined() -> bool:
            if name in self.processes and self.processes[name].poll() is None:
                return self.log(name).count(JOINED) > before
            if name in self.processes:
                self.kill(name)
                time.sleep(5)
            self.start(name, f"{name}/supernode.sh", **more)
            return False

        until(joined, f"{name} to join")

    def kill(self, name: str) -> None:
        """End a process with SIGKILL, and whatever it had started, also what outlived its parent."""
        process = self.processes[name]
        for pid in children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
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


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [more.pop("first", ""), str(ROOT / "src")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}
