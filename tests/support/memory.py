"""The most memory that a piece of Python takes, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import ROOT

PEAK = """
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
"""


def peak_bytes(before: str, code: str, folder: Path) -> int:
    """Return by how many bytes ``code`` raises the peak of a process that has run ``before``."""
    script = f"{PEAK}\n{before}\nat_first = peak()\n{code}\nprint(peak() - at_first)"
    environment = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])
