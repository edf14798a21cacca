"""Small inputs do not take much memory: sizes are looked at before anything is made room for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.data_files import encoded
from support.memory import peak_bytes

from fedcue.data import image_sources
from fedcue.data.image_sources import (
    MEMORY,
    PILLOW_LIMIT,
    FileImages,
    UnreadableError,
    bytes_of_a_pixel,
    decode,
)

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


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("webp", "RGB", {"method": 0}),
        ("webp", "RGBA", {"lossless": True, "method": 0, "quality": 0, "save_all": True}),
        ("jpg", "CMYK", {"progressive": True, "subsampling": 0}),
        ("jpg", "RGB", {"progressive": True, "subsampling": 0}),
        ("tif", "I", {"compression": "tiff_lzw"}),
        ("tif", "F", {"compression": "tiff_lzw"}),
    ],
)
def test_no_decoder_takes_more_than_is_counted_with(
    tmp_path: Path, kind: str, mode: str, options: dict[str, Any]
) -> None:
    side, grey = 2000, Image.linear_gradient("L").resize((2000, 2000))
    image = grey.convert(mode) if mode in "IF" else Image.merge("RGB", [grey] * 3).convert(mode)
    more = {"append_images": [image.rotate(90)]} if "save_all" in options else {}
    image.save(tmp_path / f"x.{kind}", **options, **more)
    with Image.open(tmp_path / f"x.{kind}") as read:
        counted = bytes_of_a_pixel(read)
    taken = peak_bytes(DECODE, f"decode(FileImages([Path('x.{kind}')]), 0, 4)", tmp_path)
    assert taken < counted * side**2 + 12 * 2**20


@pytest.mark.parametrize(("kind", "fits"), [("webp", 53), ("png", 89)])
def test_an_image_that_would_take_more_than_a_gibibyte_is_not_decoded(
    tmp_path: Path, kind: str, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In thousandths: so many million pixels fit, one million more do not."""
    monkeypatch.setattr(image_sources, "MEMORY", MEMORY // 1000)
    for height, read in ((fits, True), (fits + 1, False)):
        Image.new("RGB", (1000, height)).save(tmp_path / f"{height}.{kind}")
        images = FileImages([tmp_path / f"{height}.{kind}"])
        if read:
            decode(images, 0, 4, PILLOW_LIMIT // 2000)
        else:
            with pytest.raises(UnreadableError, match=r"take too much memory|more than data\.max_pixels"):
                decode(images, 0, 4, PILLOW_LIMIT // 2000)


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
