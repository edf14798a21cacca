"""A file is written whole or not at all, and through nothing that a stranger left beside it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fedcue.errors import CannotWrite, ConfigError, RunFolderError
from fedcue.record.files import check_output, write_bytes, write_files


@pytest.mark.parametrize("kind", ["half a file", "link", "dangling link", "pipe"])
def test_what_lies_aside_is_not_written_through(tmp_path: Path, kind: str) -> None:
    theirs, aside = tmp_path / "theirs", tmp_path / ".page.html.part"
    if kind == "half a file":
        aside.write_text("half")
    elif kind == "pipe":
        os.mkfifo(aside)
    else:
        aside.symlink_to(theirs)
    if kind == "link":
        theirs.write_text("theirs")
    write_bytes(tmp_path / "page.html", b"page")
    assert (tmp_path / "page.html").read_text() == "page"
    assert not (tmp_path / "page.html").is_symlink()
    assert not os.path.lexists(aside)
    assert theirs.read_text() == "theirs" if kind == "link" else not theirs.exists()


def test_what_could_not_be_written_leaves_the_old_file_and_no_half_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "page.html").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="No space left"):
        write_bytes(tmp_path / "page.html", b"new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_of_files_that_belong_together_none_changes_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, calls = {tmp_path / name: b"old" for name in ("a", "b", "c")}, []
    write_files(kept)

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotWrite, match=r"Cannot write .*/b: File too large\. Free some space, or give"):
        write_files(dict.fromkeys(kept, b"new"))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept


def test_what_may_not_be_written_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(descriptor: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "fsync", denied)
    with pytest.raises(CannotWrite, match=r"table\.csv: Read-only file system\. Make it writable, or give"):
        write_bytes(tmp_path / "table.csv", b"new")


@pytest.mark.parametrize(
    "place", ["/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/nothing"]
)
def test_no_file_takes_the_place_of_a_device(place: str) -> None:
    with pytest.raises(ConfigError, match="Give the name of a file"):
        check_output(Path(place))


def test_no_file_takes_the_place_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a pipe or a device"):
        write_bytes(tmp_path / "pipe", b"page")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("place", ["/", ".", "..", ""])
def test_a_folder_is_no_name_of_a_file(place: str) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        check_output(Path(place))
