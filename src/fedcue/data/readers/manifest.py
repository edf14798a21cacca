"""A list of images that settles every doubt: path, label and, if known, client, domain and split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from fedcue.data.dataset import Dataset
from fedcue.data.options import DataOptions
from fedcue.data.readers.folders import TEST_NAMES, TRAIN_NAMES, Item, build
from fedcue.data.readers.image_folder import LISTS
from fedcue.data.readers.parquet import read_columns
from fedcue.data.readers.root import closed
from fedcue.errors import DataError, many, shown
from fedcue.foreign import csv_of, expanded, is_there

COLUMNS = ("path", "label", "client", "domain", "split")
_TRAINED = ("", *TRAIN_NAMES)
_MARKS = ",;\t"
"""What spreadsheets write between columns."""


class Manifest(DataOptions):
    """Your own list of images: ``manifest.csv`` or ``.parquet`` with path, label[, client, domain, split]."""

    name: ClassVar[str] = "manifest"

    def read(self) -> Dataset:
        """Read the list; paths are relative to the folder it lies in."""
        file = _find_manifest(self.root)
        listed = [_listed(file, number, row) for number, row in enumerate(_rows(file), start=1)]
        counts = Counter(split for _, split in listed)
        tested = next((name for name in TEST_NAMES if name in counts), "")
        items = [
            item._replace(is_test=split not in _TRAINED)
            for item, split in listed
            if split in _TRAINED or split == tested
        ]
        missing = [item.path for item in items if not is_there(item.path)]
        if missing:
            raise DataError(
                f"{len(missing):,} of {len(items):,} images of {file} are not there (the first is "
                f"{missing[0]}). Paths are relative to {file.parent}."
            )
        return replace(build(self.name, items), notes=_left_aside(file, counts, tested))


def _find_manifest(root: Path | None) -> Path:
    """Return the list: the file ``root`` names, or the one that lies in this folder."""
    if root is None:
        raise DataError("data.root is missing: give the list of your images, data.root=manifest.csv.")
    path = expanded(root)
    places = [path / name for name in LISTS] if path.is_dir() else [path]
    found = next((place for place in places if place.is_file()), None)
    if found is None or found.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(f"data.root={root} is neither a list (.csv, .parquet) nor a folder with {LISTS[0]}.")
    return found


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    if file.suffix.lower() == ".parquet":
        yield from read_columns(file, ("path", "label"), COLUMNS).to_pylist()
        return
    try:
        headings, rows = csv_of(file, marks=_MARKS)
        names = {heading: heading.strip().lower() for heading in headings}
        if not {"path", "label"} <= set(names.values()):
            found = ", ".join((headings or ["nothing"])[:8])
            raise DataError(f"{file} must begin with path,label[,client,domain,split]; it has {found}.")
        yield from ({names.get(heading, ""): cell for heading, cell in row.items()} for row in rows)
    except PermissionError as error:
        raise closed(file) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} cannot be read ({error}). Save it as CSV in UTF-8, a long list as Parquet."
        ) from error


def _listed(file: Path, number: int, row: Mapping[str, Any]) -> tuple[Item, str]:
    """Return the image of a row and its split; an empty client, domain or split says nothing."""
    value = {key: "" if row.get(key) is None else str(row[key]).strip() for key in COLUMNS}
    if not value["path"] or not value["label"]:
        raise DataError(f"Row {number} of {file} has no path or no label. Fill or remove it.")
    split = value["split"].lower()
    if split not in _TRAINED + TEST_NAMES:
        raise DataError(f"Row {number} of {file} has the split {shown(split)}. Give train or test.")
    path = file.parent / expanded(value["path"])
    return Item(path, value["label"], False, value["domain"] or None, value["client"] or None), split


def _left_aside(file: Path, counts: Mapping[str, int], tested: str) -> tuple[str, ...]:
    """Say which splits are neither trained nor tested on: a list may have val beside test."""
    aside = [name for name in counts if name not in _TRAINED and name != tested]
    if not aside:
        return ()
    counted = ", ".join(f"{name} ({many(counts[name], 'image')})" for name in aside)
    return (f"{file} is tested on its split {tested}. Splits left aside: {counted}.",)
