"""What a measurement says of its circumstances, and what a tree of processes takes."""

from __future__ import annotations

import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedcue.plan import bench


def circumstances(*packages: str) -> dict[str, Any]:
    """Return machine, date, commit, load and versions."""
    return {**bench.circumstances(), "versions": {package: _version(package) for package in packages}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def watched(command: list[str], **options: Any) -> tuple[int, float, float]:
    """Run a command; return its exit code, its seconds and the peak memory of it and all it started, in MiB.

    Memory shared between processes counts once (proportional set size).
    """
    started, peak = time.perf_counter(), 0.0
    process = subprocess.Popen(command, **options)
    while process.poll() is None:
        peak = max(peak, sum(map(_memory, _family(process.pid))))
        time.sleep(0.2)
    return process.returncode, time.perf_counter() - started, peak


def _family(root: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family)


def _memory(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
