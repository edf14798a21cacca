"""Image files and the folders they lie in: found in a fixed order, made into a dataset."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import FileImages
from fedcue.data.readers.root import closed
from fedcue.errors import DataError

_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "val", "valid", "validation")
"""Names of the split that is tested on; where there are several, the first of these is."""

_LEFTOVERS = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found"})
"""Folders that systems and archives leave behind."""


class Item(NamedTuple):
    """One image file and what its place says about it."""

    path: Path
    label: str
    is_test: bool = False
    domain: str | None = None
    owner: str | None = None


def build(
    name: str, items: Iterable[Item], classes: Iterable[str] = (), domains: Iterable[str] = ()
) -> Dataset:
    """Make a dataset of image files; ``classes`` and ``domains`` come first, even if no file has them."""
    listed = list(items)
    if not listed:
        raise DataError(f"Dataset {name!r} has no images: no {', '.join(sorted(_SUFFIXES))} file was found.")
    class_names = _names(classes, (item.label for item in listed))
    domain_names = _names(domains, (item.domain for item in listed if item.domain is not None))
    owner_names = _names((), (item.owner for item in listed if item.owner is not None))
    label = {name: number for number, name in enumerate(class_names)}
    domain = {name: number for number, name in enumerate(domain_names)}
    owner = {name: number for number, name in enumerate(owner_names)}
    return Dataset(
        name=name,
        classes=class_names,
        labels=np.array([label[item.label] for item in listed], dtype=np.int64),
        is_test=np.array([item.is_test for item in listed], dtype=np.bool_),
        images=FileImages([item.path for item in listed]),
        domains=np.array([domain.get(item.domain or "", -1) for item in listed]) if domain else None,
        domain_names=domain_names,
        owners=np.array([owner.get(item.owner or "", -1) for item in listed]) if owner else None,
        owner_names=owner_names,
    )


def folders(root: Path) -> list[Path]:
    """Return the folders in ``root`` in order of their names, hidden ones and leftovers left out."""
    try:
        return sorted(path for path in root.iterdir() if path.is_dir() and not _leftover(path.name))
    except PermissionError as error:
        raise closed(root) from error


def images(folder: Path) -> list[Path]:
    """Return the image files in and below ``folder`` in order of their paths, hidden ones left out."""
    return sorted(files(folder, _SUFFIXES))


def holds_images(folder: Path) -> bool:
    """Tell whether there is an image file in or below ``folder``; the first one found ends the search."""
    return next(files(folder, _SUFFIXES), None) is not None


def files(folder: Path, suffixes: Collection[str]) -> Iterator[Path]:
    """Yield the files with these suffixes in and below ``folder``, hidden ones and leftovers left out."""

    def refuse(error: OSError) -> None:
        raise closed(error.filename) from error

    for place, inner, names in os.walk(folder, onerror=refuse):
        inner[:] = [name for name in inner if not _leftover(name)]
        yield from (Path(place) / name for name in names if suffix(name) in suffixes)


def suffix(name: str) -> str:
    """Return how a file's name ends, in small letters; a hidden file has no such end."""
    return "" if name.startswith(".") else os.path.splitext(name)[1].lower()


def _leftover(folder: str) -> bool:
    return folder.startswith(".") or folder in _LEFTOVERS


def is_image(name: str) -> bool:
    """Tell whether a file's name is that of an image that is read."""
    return suffix(name) in _SUFFIXES


def find_file(root: Path, *names: str) -> Path | None:
    """Look for one of these files in the folder or one level below; return the folder that has it."""
    places = [root, *folders(root)]
    return next((place for place in places for name in names if (place / name).is_file()), None)


def _names(first: Iterable[str], found: Iterable[str]) -> tuple[str, ...]:
    known = list(dict.fromkeys(first))
    return (*known, *sorted(set(found) - set(known)))
