"""Files that anybody may have made: looked at before they are opened, measured before they are read."""

from __future__ import annotations

import csv
import errno
import io
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STRANGE = (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""Errors of reading files that hold something else than they should: other types, other sizes, nothing."""

_MAX_TEXT = 2**28
"""Bytes of a text file at most."""

_MAX_CELL = 2**24
"""Characters of a cell of a table at most."""

_MAX_PARSED = 2**30
"""Bytes that a text and its parsed content may take in memory."""


def ordinary(path: Path, most: int | None = None) -> Path:
    """Return the path of an ordinary file; a pipe would be waited for without an end, a device never ends."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not an ordinary file")
    if most is not None and path.stat().st_size > most:
        raise OSError(f"{path} is larger than {most // 2**20} MiB")
    return path


def is_there(path: Path) -> bool:
    """Tell whether a path is that of an ordinary file; false, too, for a path that no disk can have."""
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
    return _bytes_of(path).decode()


def csv_of(
    path: Path, *, strict: bool = False, marks: str = ","
) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Return the headings and then the rows of a CSV file in UTF-8; what is none is a ValueError.

    Between columns stands that of the ``marks`` which the first line has most of.
    """
    csv.field_size_limit(_MAX_CELL)
    text = io.TextIOWrapper(io.BytesIO(_bytes_of(path)), encoding="utf-8-sig", newline="")
    first = text.readline(_MAX_CELL)
    text.seek(0)
    reader = csv.DictReader(text, strict=strict, delimiter=max(marks, key=first.count))
    try:
        return list(reader.fieldnames or ()), _rows_of(reader)
    except csv.Error as error:
        raise ValueError(f"no CSV: {error}") from error


def _rows_of(reader: csv.DictReader[str]) -> Iterator[dict[str, Any]]:
    try:
        yield from reader
    except csv.Error as error:
        raise ValueError(f"no CSV: {error}") from error


def _bytes_of(path: Path) -> bytes:
    data = ordinary(path, _MAX_TEXT).read_bytes()
    marks = data.count(b"[") + data.count(b"{")
    values = data.count(b",") + data.count(b":") + data.count(b"\n")
    if (2 if data.isascii() else 5) * len(data) + 90 * marks + 40 * values > _MAX_PARSED:
        raise ValueError(f"what it says would take more than {_MAX_PARSED // 2**20} MiB")
    return data


MAX_BYTES = 2 * 2**20
"""Size of a file at most."""


_MAX_PARTS = 64
"""Parts of a dotted key at most: a parser's memory grows with their square."""


_PART = r"""(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""


_LONG_KEY = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_MAX_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a text in TOML holds; refuse, as a ValueError, what is too large or too deep."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES // 2**20} MiB, which no recipe needs")
    found = _LONG_KEY.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a name of more than {_MAX_PARTS} dotted parts (line {line})")
    return tomllib.loads(text)


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds; its size is looked at before it is read."""
    with open(ordinary(path), "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES // 2**20} MiB, which no recipe needs")
    return parse_toml(data.decode())
