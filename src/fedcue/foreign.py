"""Files that anybody may have made: looked at before they are opened, measured before they are read."""

from __future__ import annotations

import errno
from pathlib import Path

MAX_TEXT = 2**28
"""Bytes of a text file at most."""

MAX_PARSED = 2**30
"""Bytes that a text and what it says may take in memory."""


def ordinary(path: Path, most: int | None = None) -> Path:
    """Return the path of an ordinary file; a pipe would be waited for without an end, a device never ends."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not an ordinary file")
    if most is not None and path.stat().st_size > most:
        raise OSError(f"{path} is larger than {most // 2**20} MiB")
    return path


def is_there(path: Path) -> bool:
    """Tell whether a path is an ordinary file's; one that no disk can have is none."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def expanded(path: str | Path) -> Path:
    """Return a path with ``~`` as the home folder; that of a user nobody knows is left, and not found."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def text_of(path: Path) -> str:
    """Return a text file's content; refuse, as a ValueError, what would take much memory as JSON or CSV."""
    data = ordinary(path, MAX_TEXT).read_bytes()
    marks = data.count(b"[") + data.count(b"{")
    values = data.count(b",") + data.count(b":") + data.count(b"\n")
    if (2 if data.isascii() else 5) * len(data) + 90 * marks + 40 * values > MAX_PARSED:
        raise ValueError(f"what it says would take more than {MAX_PARSED // 2**20} MiB")
    return data.decode()
