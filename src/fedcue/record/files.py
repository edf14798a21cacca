"""Files that are either the old one or the new one, never half of each; earlier settings of a run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save

from fedcue.errors import FULL, CannotWrite, ConfigError, RunFolderError
from fedcue.foreign import text_of
from fedcue.types import Tensors

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a formula can begin with."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into an error that says what to do."""
    try:
        yield
    except OSError as error:
        advice = "Free some space" if error.errno in FULL else "Make it writable"
        raise CannotWrite(
            f"Cannot write {path}: {error.strerror or error}. {advice}, or give another place."
        ) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write aside, sync, rename: a kill at any moment leaves the old file or the new one."""
    write_files({path: data})


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write files that belong together: when the disk is full, each is what it was before.

    What lies aside already is half a file, or a stranger's link or pipe: it goes, and is not written through.
    """
    asides = {path: path.with_name(f".{path.name}.part") for path in files}
    for path in files:
        check_output(path)
    try:
        for path, aside in asides.items():
            with explained(path):
                _write_aside(aside, files[path])
        for path, aside in asides.items():
            with explained(path):
                os.replace(aside, path)
    except CannotWrite:
        for aside in asides.values():
            with suppress(OSError):
                aside.unlink(missing_ok=True)  # on a full disk it would take the room that is left
        raise
    for path in files:
        with explained(path):
            _sync_folder(path.parent)


def _write_aside(aside: Path, data: bytes) -> None:
    aside.unlink(missing_ok=True)
    with open(aside, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_output(path: Path) -> None:
    """Refuse what is no file: a file in the place of a device would stay there, for everybody."""
    if path.is_dir() or path.name in ("", ".."):
        raise ConfigError(f"{path} is a folder. Give the name of a file.")
    place = path.parent.resolve()
    system = place == Path("/dev") or Path("/proc") in (place, *place.parents)
    if system or (path.exists() and not path.is_file()):
        raise ConfigError(f"{path} is a pipe or a device. Give the name of a file.")


def write_text(path: Path, text: str, *, escape: bool = False) -> None:
    """Write a text file whole or not at all.

    Names of files may hold bytes that are no text. With ``escape`` they are written as JSON escapes them.
    """
    write_bytes(path, text.encode(errors="backslashreplace" if escape else "strict"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an indented JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file whole or not at all; equal tensors give equal bytes."""
    ordered = {name: tensors[name].contiguous().cpu() for name in sorted(tensors)}
    write_bytes(path, save(ordered))


def without_formula(value: Any) -> Any:
    """Mark a text that a spreadsheet would take for a formula; leave other values as they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def read_json(path: Path) -> Any:
    """Return what a run folder's JSON file holds."""
    try:
        return json.loads(text_of(path))
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {error}. Repeat the run.") from error


def not_plain(folder: Path, ours: Iterable[Path]) -> Iterator[Path]:
    """Yield links, pipes and the like in place of a run's files, and what in its log leads out of the folder.

    Trackers make links of their own there.
    """
    for entry in ours:
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            yield entry
    for entry in (folder / "log").rglob("*"):
        inside = Path(os.path.realpath(entry)).is_relative_to(os.path.realpath(folder))
        if not inside or not (entry.is_symlink() or entry.is_file() or entry.is_dir()):
            yield entry


_EARLIER = re.compile(r"config-round-(\d{6,9})\.toml")
"""Settings of a run resumed with others: ``config-round-000010.toml`` held until round 10."""


def is_earlier_settings(name: str) -> bool:
    """Tell whether a file of a run folder holds earlier settings."""
    return _EARLIER.fullmatch(name) is not None


def earlier_settings(folder: Path) -> list[tuple[int, Path]]:
    """Return the files with earlier settings and the last round for which each held, in order."""
    found = [(_EARLIER.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)


def settings_at(folder: Path, round_: int) -> Path:
    """Return the file with the settings under which the rounds up to ``round_`` ended."""
    return next((path for last, path in earlier_settings(folder) if last >= round_), folder / "config.toml")


def keep_settings_until(folder: Path, held: str | None, round_: int) -> None:
    """Keep ``held`` as the settings that held until ``round_``; drop those of rounds to redo."""
    place = folder / f"config-round-{round_:06d}.toml"
    with explained(place):
        if held is not None:
            write_text(place, held)
        for last, path in earlier_settings(folder):
            if last > round_ or (last == round_ and held is None):
                path.unlink()
