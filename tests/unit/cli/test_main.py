"""Where the output cannot be written, or a path not be used, the command says so."""

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


SHELL = f"{sys.executable} -m fedcue"


@pytest.mark.parametrize(
    "line",
    [
        f"{SHELL} list | head -1",
        f"{SHELL} list >&-",
        f"{SHELL} list 2>&- >&-",
        f"{SHELL} list <&- >/dev/null",
    ],
    ids=["head", "no output", "no output and errors", "no input"],
)
def test_an_output_that_is_closed_leaves_no_traceback(line: str) -> None:
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=280, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [["predict", "x" * 5000, "x.png"], ["report", "x" * 5000]])
def test_a_path_that_no_disk_has_ends_in_words(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedcue", *arguments], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 1000
