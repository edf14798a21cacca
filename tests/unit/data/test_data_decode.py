"""Decoding: every mode, turned upright, unreadable images named."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_files import picture, save_picture

from fedcue.data.image_sources import FileImages, decode, upright_rgb
from fedcue.errors import DataError


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "I;16", "F"]
)
def test_every_mode_becomes_rgb(mode: str) -> None:
    if mode in ("I", "I;16"):
        image = Image.fromarray(np.full((4, 4), 257 * 128, dtype=np.uint16 if mode == "I;16" else np.int32))
    elif mode == "P":
        image = Image.new("RGB", (4, 4), (128, 128, 128)).quantize()
    else:
        image = Image.new("RGB", (4, 4), (128, 128, 128)).convert(mode)
    assert image.mode == mode
    grey = np.asarray(upright_rgb(image)).astype(int)
    assert grey.shape == (4, 4, 3)
    assert mode == "1" or np.abs(grey - 128).max() <= 2


def test_transparent_pixels_are_white() -> None:
    assert np.asarray(upright_rgb(Image.new("RGBA", (2, 2), (10, 20, 30, 0)))).min() == 255
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([10, 20, 30])
    buffer = BytesIO()
    palette.save(buffer, "PNG", transparency=0)
    assert np.asarray(upright_rgb(Image.open(buffer))).min() == 255


def test_exif_orientation_turns_the_picture(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 4), "black")
    image.paste("white", (0, 0, 4, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter clockwise when shown: the left half is now at the top
    image.save(tmp_path / "x.png", exif=exif)
    turned = decode(FileImages([tmp_path / "x.png"]), 0, 8)
    assert turned[:, 0].mean() > 250
    assert turned[:, -1].mean() < 5


def test_a_damaged_orientation_does_not_lose_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(image: Image.Image) -> Image.Image:
        raise SyntaxError("not a TIFF header")

    monkeypatch.setattr("PIL.ImageOps.exif_transpose", fail)
    path = save_picture(tmp_path / "x.png", 1)
    assert np.array_equal(decode(FileImages([path]), 0, 6).transpose(1, 2, 0), np.asarray(picture(1)))


@pytest.mark.parametrize("numbers", [(0, 1), (-4, 200), (0, 4095), (0, np.nan)])
def test_floating_point_numbers_that_do_not_end_at_255_are_refused(
    tmp_path: Path, numbers: tuple[float, float]
) -> None:
    Image.fromarray(np.array([numbers], dtype=np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=r"Cannot read .*x\.tif \(its numbers go from .* save it in 8 bits\)"):
        decode(FileImages([tmp_path / "x.tif"]), 0, 6)
    Image.fromarray(np.array([[0, 255]], dtype=np.float32)).save(tmp_path / "x.tif")
    assert decode(FileImages([tmp_path / "x.tif"]), 0, 2).max() == 255


def test_resizing_is_bicubic_and_goes_straight_to_the_square(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    image = picture(1, 32).crop((0, 0, 32, 20))
    image.save(path)
    expected = np.asarray(image.resize((9, 9), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert np.array_equal(decode(FileImages([path]), 0, 9), expected)


def test_shrinking_is_antialiased(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "x.png")
    small = decode(FileImages([tmp_path / "x.png"]), 0, 8)
    assert np.abs(small.astype(int) - 127).max() < 20


def test_pixels_have_their_channels_first(tmp_path: Path) -> None:
    pixels = decode(FileImages([save_picture(tmp_path / "x.png", 2)]), 0, 6)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels.transpose(1, 2, 0), np.asarray(picture(2)))


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n broken"])
def test_an_unreadable_image_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.png.*data\.on_bad_image=skip"):
        decode(FileImages([path]), 0, 4)


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "short.png"
    path.write_bytes(save_picture(tmp_path / "x.png", 1).read_bytes()[:-40])
    with pytest.raises(DataError, match="short"):
        decode(FileImages([path]), 0, 4)


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "x.png", 1)
    with pytest.raises(DataError, match=r"6 x 6 pixels are more than data.max_pixels=35"):
        decode(FileImages([path]), 0, 4, max_pixels=35)
