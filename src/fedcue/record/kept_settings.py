"""Earlier settings of a run resumed with others: ``config-round-000010.toml`` holds until round 10."""

from __future__ import annotations

import re
from pathlib import Path

from fedcue.record.files import explained, write_bytes

_NAME = re.compile(r"config-round-(\d{6,9})\.toml")


def is_kept(name: str) -> bool:
    """Tell whether a file of a run folder holds earlier settings."""
    return _NAME.fullmatch(name) is not None


def kept(folder: Path) -> list[tuple[int, Path]]:
    """Return the files with earlier settings and the last round for which each held, in order."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)


def held_at(folder: Path, round_: int) -> Path:
    """Return the file with the settings under which the rounds up to ``round_`` ended."""
    return next((path for last, path in kept(folder) if last >= round_), folder / "config.toml")


def keep(folder: Path, held: Path | None, round_: int) -> None:
    """Keep the settings of ``held`` as those that held until ``round_``; drop those of rounds to redo."""
    place = folder / f"config-round-{round_:06d}.toml"
    with explained(place):
        if held is not None and held != place:
            write_bytes(place, held.read_bytes())
        for last, path in kept(folder):
            if last > round_ or (last == round_ and held is None):
                path.unlink()
