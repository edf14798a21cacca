"""Encoded images in the rows of Parquet files, opened one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedcue.data.image_sources import FORMATS
from fedcue.errors import DataError

_BATCH = 32


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
