"""The files of a run folder, each read by itself."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedcue.errors import RunFolderError
from fedcue.foreign import csv_of, ordinary, text_of

Array = NDArray[Any]

MAX_BYTES = 2**28
"""Bytes of a file of tensors at most: prompts, prototypes and what is known of some images are far fewer."""

_MOST = 2**16
"""Bytes that are read of the end of a file."""


@dataclass(frozen=True)
class Client:
    """One line of ``clients.csv``: a client and how well it was served."""

    id: int
    name: str
    domain: str
    heldout: bool
    train_size: int
    test_size: int
    accuracy: float | None
    """On test images or, in tuning, on validation images."""


def last_words(folder: Path) -> str:
    """Return the last line of the traceback that ``fedcue compare`` puts beside a run that failed."""
    path = Path(f"{folder.resolve()}.error.txt")
    lines = _end_of(path).split("\n") if path.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _end_of(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _MOST))
        return file.read(_MOST).decode(errors="replace")


def is_written(folder: Path) -> bool:
    """Say whether the process named in the folder's lock is alive (the lock itself is left alone)."""
    lock = folder / ".lock"
    if not lock.is_file():  # a pipe would be waited for
        return False
    try:
        os.kill(int(_end_of(lock)), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def json_object(path: Path) -> Mapping[str, Any]:
    """Return the object of a JSON file, an empty one if there is no file."""
    if not path.is_file():
        return {}
    value = json.loads(text_of(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold an object.")
    return value


def client_rows(path: Path) -> list[Client]:
    """Return the clients of ``clients.csv``, none if there is no file."""
    if not path.is_file():
        return []
    headings, rows = csv_of(path)
    split = "validation" if "validation_accuracy" in headings else "test"
    return [
        Client(
            id=int(row["id"]),
            name=row["name"],
            domain=row["domain"],
            heldout=row["heldout"] == "true",
            train_size=int(row["train_size"]),
            test_size=int(row[f"{split}_size"]),
            accuracy=float(row[f"{split}_accuracy"]) if row[f"{split}_accuracy"] else None,
        )
        for row in rows
    ]


def tensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a safetensors file, none if there is no file."""
    if not path.is_file():
        return {}
    try:
        return dict(load_file(ordinary(path, MAX_BYTES)))
    # numpy lacks some types, of which safetensors learns by an AttributeError
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise RunFolderError(f"{path} is damaged: {error}. Repeat the run.") from error
