"""Datasets in the hub's Parquet layout: encoded images in one column, labels in another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from fedcue.data.dataset import Dataset, Indices
from fedcue.data.options import DataOptions
from fedcue.data.readers import hub
from fedcue.data.readers.parquet_images import ParquetImages
from fedcue.data.readers.root import existing_folder
from fedcue.errors import DataError, unknown

MAX_ROWS = 20_000_000  # a file of a few bytes can claim any number
TEST_SPLITS = ("test", "valid", "validation", "val")
_LABELS = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
_SHARD = re.compile(r"(?P<start>.+)-\d{5}-of-(?P<number>\d{5})(?P<rest>.*)")


@dataclass(frozen=True)
class Columns:
    """The names of the columns that hold the image, its label and, if known, its domain and client."""

    image: str = "image"
    label: str = "label"
    domain: str | None = None
    client: str | None = None


class Parquet(DataOptions):
    """Your own Parquet files, or any image dataset on the hub: say what the columns are called."""

    name: ClassVar[str] = "parquet"

    hub: str | None = Field(None, description="hub id to download if there is no root, such as owner/name")
    image: str = Field("image", description="column of the encoded images")
    label: str = Field("label", description="column of the classes")
    domain: str | None = Field(None, description="column of the domains, if any")
    client: str | None = Field(
        None, description="column that says whose an image is, if any; test images may be nobody's"
    )
    train_split: str = Field("train", description="split to train on: what its files' names begin with")
    test_split: str | None = Field(None, description="split to test on; test or validation by default")

    def read(self) -> Dataset:
        """Read the labels and find the images, downloading them if there is no ``root``."""
        if self.root is None and self.hub is None:
            raise DataError("Dataset 'parquet' needs data.root=FOLDER or data.hub=OWNER/NAME.")
        folder = existing_folder(self.root) if self.root is not None else hub.download(str(self.hub))
        splits = find_splits(folder, self.train_split, self.test_split)
        columns = Columns(self.image, self.label, self.domain, self.client)
        return read_parquet(self.name, splits["train"], splits["test"], columns)


def find_splits(
    folder: Path, train_split: str = "train", test_split: str | None = None
) -> dict[str, list[Path]]:
    """Find the Parquet files under ``folder``: those to train on and those to test on.

    A file belongs to the split its name or its folder begins with, as on the hub
    (``data/train-00000-of-00002.parquet``, ``train/0000.parquet``); one that names no split is for training.
    """
    by_split: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*.parquet")):
        by_split.setdefault(_split_name(file, folder), []).append(file)
    candidates = TEST_SPLITS if test_split is None else (test_split,)
    test = next((by_split[name] for name in candidates if name in by_split), [])
    train = by_split.get(train_split) or by_split.get("", [])
    if not train:
        raise DataError(
            f"{folder} has no Parquet file of the split {train_split!r} (found: "
            f"{', '.join(sorted(filter(None, by_split))) or 'none'}). Give the folder with the train files."
        )
    _require_all_shards([*train, *test])
    return {"train": train, "test": test}


def read_parquet(name: str, train: Sequence[Path], test: Sequence[Path], columns: Columns) -> Dataset:
    """Read the labels of a dataset in Parquet files; its images are read when they are needed."""
    files = [*train, *test]
    wanted = [name for name in (columns.label, columns.domain, columns.client) if name is not None]
    tables = []
    for file in files:
        needed = [name for name in wanted if name != columns.client or file in train]
        present = _require_columns(file, [columns.image, *needed])
        tables.append(_read(file, [name for name in wanted if name in present]))
    table = _joined(tables)
    classes, labels = _categories(table, columns.label, tables[0].schema)
    domain_names, domains = _optional(table, columns.domain, tables[0].schema)
    owner_names, owners = _owners(table, columns.client, tables[0].schema)
    train_rows = sum(len(part) for part in tables[: len(train)])
    return Dataset(
        name=name,
        classes=classes,
        labels=labels,
        is_test=np.arange(len(table)) >= train_rows,
        images=ParquetImages(files, columns.image),
        domains=domains,
        domain_names=domain_names,
        owners=owners,
        owner_names=owner_names,
    )


def _split_name(file: Path, folder: Path) -> str:
    names = [file.stem, *(parent.name for parent in file.relative_to(folder).parents)]
    words = [name.replace(".", "-").replace("_", "-").split("-")[0] for name in names]
    return next((word for word in words if word in ("train", *TEST_SPLITS)), "")


def _require_all_shards(files: Sequence[Path]) -> None:
    """Refuse ``train-00000-of-00002.parquet`` without its second half."""
    names = {file.name for file in files}
    for name in names:
        shard = _SHARD.fullmatch(name)
        if shard:
            start, number, rest = shard["start"], int(shard["number"]), shard["rest"]
            expected = [f"{start}-{part:05d}-of-{number:05d}" for part in range(number)]
            missing = [stem for stem in expected if not any(found.startswith(stem) for found in names)]
            if missing:
                raise DataError(
                    f"{missing[0]}{rest} is missing next to {name}. Fetch it, or all of them again."
                )


def _require_columns(file: Path, columns: Sequence[str]) -> Sequence[str]:
    """Return the columns of a file, or say which is missing or what is wrong with its rows."""
    with _readable(file):
        metadata = pq.read_metadata(file)
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        present = metadata.schema.to_arrow_schema().names
    if sum(rows) != metadata.num_rows or not 0 <= max(rows, default=0) <= metadata.num_rows <= MAX_ROWS:
        raise DataError(
            f"{file} claims {metadata.num_rows} rows in groups of {rows[:5]}. It must have at most "
            f"{MAX_ROWS} rows. Fetch the file again."
        )
    for column in columns:
        if column not in present:
            hint = "Name the columns with data.image, data.label, data.domain and data.client."
            raise DataError(f"{file}: {unknown('column', column, present)} {hint}")
    return list(present)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn whatever pyarrow finds wrong with a file into an error that says what to do."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"Cannot read {file} as Parquet ({reason}). Fetch the file again.") from error


def _read(file: Path, columns: Sequence[str]) -> pa.Table:
    with _readable(file):
        return pq.ParquetFile(file, memory_map=True).read(columns=list(columns))


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    try:
        plain = [table.replace_schema_metadata(None) for table in tables]
        return pa.concat_tables(plain, promote_options="default")  # a missing column is empty
    except pa.ArrowException as error:
        raise DataError(
            f"The Parquet files have columns of different types ({str(error)[:300]}). "
            "Give files of one dataset."
        ) from error


def _optional(
    table: pa.Table, column: str | None, schema: pa.Schema
) -> tuple[tuple[str, ...], Indices | None]:
    return ((), None) if column is None else _categories(table, column, schema)


def _owners(table: pa.Table, column: str | None, schema: pa.Schema) -> tuple[tuple[str, ...], Indices | None]:
    """Return the clients and the number of each row's, -1 where a row says nothing."""
    if column is None:
        return (), None
    known = np.asarray(table[column].is_valid())
    names, numbers = _categories(table.filter(table[column].is_valid()), column, schema)
    owners = np.full(len(table), -1, dtype=np.int64)
    owners[known] = numbers
    return names, owners


def _categories(table: pa.Table, column: str, schema: pa.Schema) -> tuple[tuple[str, ...], Indices]:
    """Return the names of a column's values and the number of the name in each row."""
    values = table[column]
    if values.null_count:
        raise DataError(f"Column {column!r} is empty in {values.null_count} rows. Fill or remove these rows.")
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not any(test(values.type) for test in _LABELS):
        raise DataError(
            f"Column {column!r} is of type {str(values.type)[:100]}. It must hold integers or strings; "
            "name another one with data.label, data.domain or data.client."
        )
    names = _class_names(schema, column)
    array = values.to_numpy()
    if names is not None and array.dtype.kind in "iu":
        if len(array) and not 0 <= array.min() <= array.max() < len(names):
            raise DataError(
                f"Column {column!r} has values outside its {len(names)} names: they must be 0 to "
                f"{len(names) - 1}."
            )
        return names, array.astype(np.int64)
    found, number = np.unique(array, return_inverse=True)
    return tuple(str(value) for value in found), number.astype(np.int64)


def _class_names(schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """Return the names that the hub's metadata gives the integers of a column."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        names = features[column]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return tuple(names) if isinstance(names, list) and all(isinstance(n, str) for n in names) else None
