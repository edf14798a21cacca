"""Tiny files for every layout, and the real files next to the repository where they exist."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from support import SHARED_DATA

REAL = SHARED_DATA


def real_files(name: str) -> pytest.MarkDecorator:
    """Skip, visibly, where the real files are not next to the repository."""
    return pytest.mark.skipif(
        not (REAL / name).exists(), reason=f"../shared/data/{name} is not next to the repository"
    )


def picture(number: int, size: int = 6) -> Image.Image:
    """Draw a small picture that differs for every number."""
    pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(number: int, size: int = 6, kind: str = "PNG") -> bytes:
    buffer = BytesIO()
    picture(number, size).save(buffer, kind)
    return buffer.getvalue()


def save_picture(path: Path, number: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(number).save(path)
    return path


WriteParquet = Callable[..., Path]


def write_parquet(
    path: Path,
    columns: dict[str, Any],
    images: Sequence[bytes | None],
    *,
    image: str = "image",
    names: dict[str, list[str]] | None = None,
    rows_per_group: int = 4,
    plain: bool = False,
) -> Path:
    """Write a file as the hub does: image structs, class names in the schema's metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = list(images) if plain else [{"bytes": data, "path": "x.png"} for data in images]
    table = pa.table({image: cells, **columns})
    features = {column: {"names": values, "_type": "ClassLabel"} for column, values in (names or {}).items()}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path
