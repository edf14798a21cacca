"""Where the output cannot be written, the command says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["list"], ["--version"]])
def test_a_full_disk_ends_in_words(arguments: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedcue", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=280, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "Cannot write the output: No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
