"""Classify many image files: folders and patterns become files, files become rows, a few at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedcue.after.images import read_images
from fedcue.after.predict import Model
from fedcue.clients.priors import is_doubtful
from fedcue.data.image_sources import UnreadableError
from fedcue.data.readers.folders import images
from fedcue.errors import ConfigError, DataError, printable

CHUNK = 100
"""Files whose pixels are in memory together."""

_SAMPLE = 200
"""Files, evenly spread, that say whether the given priors can be right."""

NONE = "None of the images can be read. Give others."

log = logging.getLogger(__name__)


def find_images(given: Iterable[str]) -> list[Path]:
    """Return the files that are meant: themselves, all images below a folder, all that match a pattern."""
    found: list[Path] = []
    for name in given:
        if Path(name).is_dir():
            files = images(Path(name))
        elif has_magic(name) and not Path(name).exists():
            files = sorted(Path(path) for path in glob(name, recursive=True) if Path(path).is_file())
        else:
            files = [Path(name)]
        if not files:
            raise ConfigError(f"{name} holds or matches no image. Give image files, folders or patterns.")
        found += files
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class FilePrediction:
    """What is said of one file: its class, how probable that is, and what the method shows."""

    path: Path
    label: str
    probability: float
    details: dict[str, Tensor]

    def row(self) -> dict[str, Any]:
        """Return it as a line of a table."""
        return {"image": str(self.path), "class": self.label, "probability": self.probability}


def predict_files(
    model: Model,
    paths: Sequence[Path],
    priors: Sequence[float] | None = None,
    client: int | None = None,
    *,
    details: bool = False,
    skip: bool = False,
    progress: Callable[[int], None] = lambda files: None,
) -> Iterator[FilePrediction]:
    """Classify files in their order; with ``skip``, those that cannot be read are named and left out."""
    none = True
    for read, tried in _chunks(model, paths, skip):
        if read:
            none, found = False, model.predict(list(read.values()), priors, client, details=details)
            for row, path in enumerate(read):
                own = {name: values[row] for name, values in found.details.items()}
                yield FilePrediction(path, found.labels[row], float(found.probabilities[row].max()), own)
        progress(tried)
    if none:
        raise DataError(NONE)


def _chunks(
    model: Model, paths: Sequence[Path], skip: bool, *, tell: bool = True
) -> Iterator[tuple[dict[Path, Tensor], int]]:
    """Yield the pixels of a few files at a time, and how many files were tried."""
    for start in range(0, len(paths), CHUNK):
        chunk = paths[start : start + CHUNK]
        tried = {path: _read(path, model, skip, tell) for path in chunk}
        yield {path: pixels for path, pixels in tried.items() if pixels is not None}, len(chunk)


def _read(path: Path, model: Model, skip: bool, tell: bool) -> Tensor | None:
    try:
        return read_images(path, model.model.architecture.image_size)[0]
    except UnreadableError as error:
        if not skip:
            raise DataError(
                f"Cannot read {error.where} ({error.reason}). Mend or remove it, or give --skip-unreadable."
            ) from error
        if tell:
            log.warning("Skipped %s", printable(f"{error.where}: {error.reason}"))
        return None


def file_scores(
    model: Model, paths: Sequence[Path], client: int | None = None, *, skip: bool = False
) -> Tensor:
    """Return the log probabilities ``[n, C]`` of files as if all classes were equally frequent.

    Which files are left out is said when they are classified.
    """
    chunks = _chunks(model, paths, skip, tell=False)
    scores = [model.scores(list(read.values()), client) for read, _ in chunks if read]
    if not scores:
        raise DataError(NONE)
    return torch.cat(scores)


def doubted(
    model: Model, paths: Sequence[Path], priors: Sequence[float] | None, client: int | None, *, skip: bool
) -> bool:
    """Tell whether a sample of the files contradicts the given priors, or the client's."""
    if priors is None and client is None:
        return False
    sample = paths[:: -(-len(paths) // _SAMPLE)]
    return is_doubtful(file_scores(model, sample, client, skip=skip), model.log_priors(priors, client).exp())
