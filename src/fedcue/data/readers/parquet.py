"""Datasets in the hub's Parquet layout: encoded images in one column, labels in another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from fedcue.data.dataset import Dataset
from fedcue.data.readers import hub
from fedcue.data.readers.columns import Columns, TableOptions, require, tabled
from fedcue.data.readers.parquet_images import ParquetImages
from fedcue.data.readers.root import existing_folder
from fedcue.errors import DataError
from fedcue.foreign import ordinary

MAX_ROWS, SMALL_ROWS = 20_000_000, 1_000
"""Rows of a file at most; a file of a few bytes can claim any number, and may have a thousand."""

MAX_RATIO, SMALL_BYTES = 100, 2**23
"""How much larger a column may be than its file, beyond a few MiB; nothing but a trap packs images better."""

TEST_SPLITS = ("test", "valid", "validation", "val")
_SHARD = re.compile(r"(?P<start>.+)-\d{5}-of-(?P<number>\d{5})(?P<rest>.*)")


class Parquet(TableOptions):
    """Your own Parquet files, or any image dataset on the hub: say what the columns are called."""

    name: ClassVar[str] = "parquet"

    hub: str | None = Field(None, description="hub id to download if there is no root, such as owner/name")

    def read(self) -> Dataset:
        """Read the labels and find the images, downloading them if there is no ``root``."""
        if self.root is None and self.hub is None:
            raise DataError("Dataset 'parquet' needs data.root=FOLDER or data.hub=OWNER/NAME.")
        folder = existing_folder(self.root) if self.root is not None else hub.download(str(self.hub))
        splits = find_splits(folder, self.train_split, self.test_split)
        return read_parquet(self.name, splits["train"], splits["test"], self.columns)


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
    tables = []
    for file in files:
        optional = () if file in train else (columns.client,)
        needed = [name for name in columns.described() if name not in optional]
        present = _require_columns(file, [columns.image, *needed])
        tables.append(_read(file, [name for name in columns.described() if name in present]))
    return tabled(name, tables, len(train), columns, ParquetImages(files, columns.image))


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
        metadata = pq.read_metadata(ordinary(file))
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        present = metadata.schema.to_arrow_schema().names
        unpacked = max(
            (metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)), default=0
        )
    size = file.stat().st_size
    most = min(MAX_ROWS, SMALL_ROWS + size)  # a row with an image takes more than a byte
    if sum(rows) != metadata.num_rows or not 0 <= max(rows, default=0) <= metadata.num_rows <= most:
        raise DataError(
            f"{file} claims {metadata.num_rows} rows in groups of {rows[:5]}. A file of {size} bytes must "
            f"have at most {most} rows. Fetch the file again."
        )
    if not 0 <= unpacked <= SMALL_BYTES + MAX_RATIO * size:
        raise DataError(
            f"{file} has {size} bytes and claims {unpacked} bytes of unpacked columns. It must hold at most "
            f"{MAX_RATIO} times its size. Fetch the file again."
        )
    require(file, columns, present)
    return list(present)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn whatever pyarrow finds wrong with a file into an error that says what to do."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"Cannot read {file} as Parquet ({reason}). Fetch the file again.") from error


def read_columns(file: Path, needed: Sequence[str], known: Sequence[str]) -> pa.Table:
    """Read those of the known columns that a file has; the needed ones must be there."""
    present = _require_columns(file, needed)
    return _read(file, [name for name in known if name in present])


def _read(file: Path, columns: Sequence[str]) -> pa.Table:
    with _readable(file):
        # texts that repeat are kept once: a row then takes four bytes, however long its label is
        return pq.ParquetFile(file, memory_map=True, read_dictionary=list(columns)).read(
            columns=list(columns)
        )
