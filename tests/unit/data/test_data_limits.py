"""Small inputs do not take much memory: sizes are looked at before anything is made room for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.data_files import encoded
from support.memory import peak_bytes

SIDE = 3_000
DECODE = """
from pathlib import Path
from fedcue.data.image_sources import decode
from fedcue.data.image_sources import FileImages
from PIL import Image
Image.new("RGBA", (8, 8)).save("small.png")
decode(FileImages([Path("small.png")]), 0, 4)
"""


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "I;16", "L"])
def test_decoding_takes_room_for_the_image_and_one_in_rgb(tmp_path: Path, mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.full((SIDE, SIDE), 40_000, dtype=np.uint16))
    else:
        image = Image.new(mode, (SIDE, SIDE), 100 if mode in ("P", "L") else (9, 8, 7, 100)[: len(mode)])
    image.save(tmp_path / "x.png", **({"transparency": 3} if mode == "P" else {}))
    taken = peak_bytes(DECODE, "decode(FileImages([Path('x.png')]), 0, 4)", tmp_path)
    assert taken < (4 + 4) * SIDE**2 + 40 * 2**20  # bands and buffers; once 18 to 30 bytes a pixel


READ = """
import pyarrow.parquet
from fedcue.data.readers.parquet import Parquet
from fedcue.errors import DataError
"""
TRY = """
try:
    dataset = Parquet(root=".").load(0)
    for index in range(min(40, len(dataset))):
        dataset.images.content(index)
except DataError as error:
    assert ACCEPT in str(error), error
"""


def trap(path: Path, images: pa.Array, labels: pa.Array) -> None:
    """Write a file whose repeated values are kept once and packed."""
    table = pa.table({"image": images, "label": labels})
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=2**30, data_page_size=2**30)
    assert path.stat().st_size < 200_000


def repeated(value: bytes | str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), pa.array([value]))


@pytest.mark.parametrize(
    ("image", "label", "rows", "says"),
    [
        (bytes(50_000_000), "owl", 40, "bytes of unpacked columns"),
        (encoded(0), "owl", 5_000_000, "must have at most"),
        (encoded(0), "o" * 20_000_000, 900, "bytes of unpacked columns"),
        (encoded(0), "o" * 7_000_000, 900, "names of more than"),
    ],
)
def test_a_small_parquet_file_cannot_take_much_memory(
    tmp_path: Path, image: bytes, label: str, rows: int, says: str
) -> None:
    trap(tmp_path / "train.parquet", repeated(image, rows), repeated(label, rows))
    taken = peak_bytes(READ, TRY.replace("ACCEPT", repr(says)), tmp_path)
    assert taken < 200 * 2**20
