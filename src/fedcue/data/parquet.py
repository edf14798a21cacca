"""Datasets in the hub's Parquet layout: encoded images in one column, labels in another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedcue.data.dataset import FORMATS, Dataset, Indices
from fedcue.errors import DataError, unknown

MAX_ROWS = 20_000_000  # a file of a few bytes can claim any number
TEST_SPLITS = ("test", "valid", "validation", "val")
_BATCH = 64
_LABELS = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
_SHARD = re.compile(r"(?P<start>.+)-\d{5}-of-(?P<number>\d{5})(?P<rest>.*)")


@dataclass(frozen=True)
class Columns:
    """The names of the columns that hold the image, its label and, if known, its domain and client."""

    image: str = "image"
    label: str = "label"
    domain: str | None = None
    client: str | None = None


class ParquetImages:
    """Encoded images in the rows of Parquet files, read batch by batch; only one batch is in memory.

    Going forwards costs one pass over the files. Going backwards starts again at the row group.
    """

    def __init__(self, files: Sequence[Path], column: str) -> None:
        self.files = tuple(files)
        self.column = column
        metadata = [pq.read_metadata(file) for file in files]
        groups = [(file, group) for file, meta in enumerate(metadata) for group in range(meta.num_row_groups)]
        rows = [metadata[file].row_group(group).num_rows for file, group in groups]
        self._groups = groups
        self._starts = np.cumsum([0, *rows])  # first row of each row group
        self._first_row = np.cumsum([0, *(meta.num_rows for meta in metadata)])  # first row of each file
        self._group = -1
        self._start, self._batch = 0, pa.array([], type=pa.binary())
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._starts[-1])

    def open(self, index: int) -> Image.Image:
        """Open the image of the row ``index``."""
        return Image.open(BytesIO(self.content(index)), formats=FORMATS)

    def content(self, index: int) -> bytes:
        """Return the encoded image of the row ``index``."""
        group = int(np.searchsorted(self._starts, index, side="right")) - 1
        if group != self._group or index < self._start:
            self._seek(group)
        while index >= self._start + len(self._batch):
            self._start += len(self._batch)
            self._batch = self._next()
        value = self._batch[index - self._start].as_py()
        if not isinstance(value, bytes):
            raise DataError(f"{self.describe(index)} holds no image. Fill or remove the row.")
        return value

    def describe(self, index: int) -> str:
        """Name the row ``index``."""
        file = int(np.searchsorted(self._first_row, index, side="right")) - 1
        return f"row {index - self._first_row[file]} of {self.files[file]}"

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files out, so that another process can open its own."""
        return {"files": self.files, "column": self.column}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the files again."""
        self.__init__(**state)  # type: ignore[misc]

    def _seek(self, group: int) -> None:
        number, row_group = self._groups[group]
        file = pq.ParquetFile(self.files[number], memory_map=True)
        self._group, self._start, self._batch = group, int(self._starts[group]), self._batch[:0]
        self._batches = file.iter_batches(
            _BATCH, row_groups=[row_group], columns=[self.column], use_threads=False
        )

    def _next(self) -> pa.Array:
        column = next(self._batches).column(0)
        return column.field("bytes") if pa.types.is_struct(column.type) else column


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
        _require_columns(file, [columns.image, *wanted])
        tables.append(_read(file, wanted))
    table = _joined(tables)
    classes, labels = _categories(table, columns.label, tables[0].schema)
    domain_names, domains = _optional(table, columns.domain, tables[0].schema)
    owner_names, owners = _optional(table, columns.client, tables[0].schema)
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


def _require_columns(file: Path, columns: Sequence[str]) -> None:
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
        return pa.concat_tables([table.replace_schema_metadata(None) for table in tables])
    except pa.ArrowException as error:
        raise DataError(
            f"The Parquet files have columns of different types ({str(error)[:300]}). "
            "Give files of one dataset."
        ) from error


def _optional(
    table: pa.Table, column: str | None, schema: pa.Schema
) -> tuple[tuple[str, ...], Indices | None]:
    return ((), None) if column is None else _categories(table, column, schema)


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
