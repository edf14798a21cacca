"""Which faults are tried: a draw of places that stays as it is where the code does."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from mutants.operators import Site, sites


class Fault(NamedTuple):
    """One small change of one file below ``src``."""

    id: str
    file: str
    function: str
    line: int
    statement: tuple[int, int]
    before: str
    after: str
    source: str
    """The whole file with the fault."""


def module_name(file: str) -> str:
    """Return the name under which a file below ``src`` is imported."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def targets(src: Path, patterns: Iterable[str]) -> list[str]:
    """Return the files of modules and packages given by their path in the package, such as ``*sampling``."""
    files = sorted(path.relative_to(src).as_posix() for path in src.rglob("*.py"))
    found: set[str] = set()
    for pattern in patterns:
        wide = (f"{pattern}.py", f"{pattern}/*.py")
        named = {file for file in files if any(fnmatch(file.partition("/")[2], one) for one in wide)}
        if not named:
            raise SystemExit(f"--over {pattern} names no module or package of {src}")
        found |= named
    return sorted(found)


def draw(src: Path, files: Iterable[str], seed: int) -> list[Fault]:
    """Return one fault for every place, in an order and with a choice that the seed decides.

    Places are sorted by a hash of what they say: a change elsewhere leaves their order as it was.
    """
    ranked: dict[str, Fault] = {}
    for file in files:
        source = (src / file).read_bytes()
        seen: Counter[str] = Counter()
        for site in sites(source.decode()):
            old = source[site.start : site.end].decode()
            place = f"{file} {site.function} {site.operator} {_lines(source, site, old)}"
            seen[place] += 1
            rank = _hash(f"{seed} {place} {seen[place]}")
            new = site.choices[int(rank, 16) % len(site.choices)]
            changed = (source[: site.start] + new.encode() + source[site.end :]).decode()
            try:
                compile(changed, file, "exec")
            except SyntaxError:
                continue
            name = _hash(f"{place} {seen[place]} {new}")[:12]
            line = source.count(b"\n", 0, site.start) + 1
            lines = (site.statement[0], site.statement[1] - old.count("\n") + new.count("\n"))
            texts = _lines(source, site, old), _lines(source, site, new)
            ranked[rank] = Fault(name, file, site.function, line, lines, *texts, changed)
    return [ranked[rank] for rank in sorted(ranked)]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(source: bytes, site: Site, text: str) -> str:
    """Return the lines of a place with a text put there, as one line."""
    before = source[source.rfind(b"\n", 0, site.start) + 1 : site.start].decode()
    return " ".join((before + text + source[site.end :].split(b"\n")[0].decode()).split())
