"""A folder that Hugging Face's ``datasets`` saved (``save_to_disk``): Arrow files, mapped, never pickled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from PIL import Image

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import FORMATS, FileImages
from fedcue.data.readers.columns import TableOptions, require, tabled
from fedcue.data.readers.parquet import TEST_SPLITS
from fedcue.data.readers.root import existing_folder
from fedcue.errors import DataError, unknown
from fedcue.foreign import ordinary, text_of

STATE, SPLITS = "state.json", "dataset_dict.json"


class Saved(TableOptions):
    """A folder saved by Hugging Face's ``datasets``: one dataset, or one for each split."""

    name: ClassVar[str] = "saved"

    def read(self) -> Dataset:
        """Read the labels; the images stay in the mapped files."""
        folder = existing_folder(self.root)
        parts = _splits(folder, self.train_split, self.test_split)
        tables = [_table(part) for part in parts]
        wanted = self.columns.described()
        for number, (part, table) in enumerate(zip(parts, tables, strict=True)):
            optional = (self.client,) if number else ()
            require(part, [self.image, *(n for n in wanted if n not in optional)], table.column_names)
        described = [table.select([n for n in wanted if n in table.column_names]) for table in tables]
        images = _ArrowImages(parts, self.image, [table[self.image] for table in tables])
        return tabled(self.name, described, 1, self.columns, images)


class _ArrowImages:
    """Encoded images in the columns of mapped Arrow files."""

    def __init__(self, folders: Sequence[Path], column: str, parts: Sequence[pa.ChunkedArray]) -> None:
        self.folders, self.column, self.parts = tuple(folders), column, tuple(parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.starts[-1])

    def open(self, index: int) -> Image.Image:
        """Open the image of the row ``index``."""
        return Image.open(BytesIO(self.content(index)), formats=FORMATS)

    def content(self, index: int) -> bytes:
        """Return the encoded image of the row ``index``, from the row or from the file it names."""
        part = int(np.searchsorted(self.starts, index, side="right")) - 1
        value: Any = self.parts[part][index - int(self.starts[part])].as_py()
        if isinstance(value, dict) and value.get("bytes") is None and value.get("path"):
            return FileImages([self.folders[part] / str(value["path"])]).content(0)
        found = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(found, bytes):
            raise DataError(f"{self.describe(index)} holds no image. Fill or remove the row.")
        return found

    def describe(self, index: int) -> str:
        """Name the row ``index``."""
        part = int(np.searchsorted(self.starts, index, side="right")) - 1
        return f"row {index - int(self.starts[part])} of {self.folders[part]}"


def is_saved(folder: Path) -> bool:
    """Tell whether ``datasets`` saved this folder."""
    return any((folder / name).is_file() for name in (STATE, SPLITS))


def _splits(folder: Path, train: str, test: str | None) -> list[Path]:
    """Return the folders of the split to train on and, if there is one, of the split to test on."""
    if (folder / STATE).is_file():
        return [folder]
    if not (folder / SPLITS).is_file():
        raise DataError(f"{folder} has neither {STATE} nor {SPLITS}: give a folder that save_to_disk wrote.")
    listed = _json(folder / SPLITS).get("splits")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    if train not in names:
        raise DataError(f"{folder}: {unknown('split', train, names)} Name it with data.train_split.")
    candidates = TEST_SPLITS if test is None else (test,)
    found = next((name for name in candidates if name in names and name != train), None)
    return [folder / name for name in (train, found) if name is not None]


def _table(folder: Path) -> pa.Table:
    state = _json(folder / STATE)
    if state.get("_indices_data_files"):
        raise DataError(f"{folder} holds a selection that was not written out: save flatten_indices() of it.")
    try:
        files = [folder / Path(str(file["filename"])).name for file in state["_data_files"]]
        streams = [pa.ipc.open_stream(pa.memory_map(str(ordinary(file)))) for file in files]
        return pa.concat_tables([stream.read_all() for stream in streams])
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"Cannot read {folder} as saved by datasets ({reason}). Save it again.") from error


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(text_of(file))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"Cannot read {file} ({str(error)[:200]}). Save the dataset again.") from error
    return found if isinstance(found, dict) else {}
