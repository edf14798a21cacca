"""Where the output cannot be written, or a path not be used, the command says so."""

from __future__ import annotations

import errno
import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from fedcue.cli import main
from fedcue.cli.main import Warnings

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


def test_a_folder_that_was_deleted_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr("sys.argv", ["fedcue", "partition"])
    with pytest.raises(SystemExit, match="2"):
        main.main()
    told = "fedcue: The folder this shell is in was deleted. Change to another one (cd).\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("names", [("taken/model",), ("read/model", None, "taken/model")])
def test_a_file_that_finds_no_room_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], names: tuple[Any, ...]
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", *names)

    monkeypatch.setattr(main, "app", full)
    with pytest.raises(SystemExit, match="2"):
        main.main()
    assert "Cannot write 'taken/model': No space left on device. Free some space" in capsys.readouterr().err


class Terminal(io.StringIO):
    """A stream that says it is a terminal, or not."""

    def __init__(self, looked_at: bool) -> None:
        super().__init__()
        self.looked_at = looked_at

    def isatty(self) -> bool:
        return self.looked_at


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_warning_stands_above_a_progress_display_and_never_in_its_line(
    monkeypatch: pytest.MonkeyPatch, looked_at: bool
) -> None:
    errors, shown = Terminal(looked_at), io.StringIO()
    monkeypatch.setattr("sys.stderr", errors)
    handler = Warnings()
    record = logging.LogRecord("fedcue", logging.WARNING, "", 0, "read as classes", None, None)
    with Progress(console=Console(file=shown, force_terminal=True, width=80)) as progress:
        progress.add_task("starting", total=None)
        handler.emit(record)
        theirs = logging.LogRecord("huggingface_hub.utils", logging.WARNING, "", 0, "retrying", None, None)
        handler.emit(theirs)
        monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a forked process
        handler.emit(record)
    drawn, forked = shown.getvalue(), errors.getvalue()
    assert drawn.count("read as classes\n") == looked_at
    assert "retrying" not in drawn + forked, "it prints its own"
    assert forked.count("read as classes\n") == 2 - looked_at
