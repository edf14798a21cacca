"""Read TOML that anybody may have written: what would take much memory is refused before it is parsed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from fedcue.foreign import ordinary

MAX_BYTES = 2 * 2**20
"""Size of a file at most."""

MAX_PARTS = 64
"""Parts of a dotted key at most: a parser's memory grows with their square."""

_PART = r"""(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a text in TOML holds; refuse, as a ValueError, what is too large or too deep."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES // 2**20} MiB, which no recipe needs")
    found = _LONG_KEY.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a name of more than {MAX_PARTS} dotted parts (line {line})")
    return tomllib.loads(text)


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds; its size is looked at before it is read."""
    with open(ordinary(path), "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES // 2**20} MiB, which no recipe needs")
    return parse_toml(data.decode())
