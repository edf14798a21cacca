"""Decode one image, whatever Pillow reads: upright, RGB, square, uint8."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedcue.data.dataset import ImageSource
from fedcue.errors import DataError

PILLOW_LIMIT = 178_956_970
"""Pillow refuses any image with more pixels than this, whatever ``max_pixels`` says."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Image formats that are read; others (some of which Pillow hands to other programs) are not."""

_WHITE = (255, 255, 255, 255)


class UnreadableError(DataError):
    """An image cannot be read."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"Cannot read {where} ({reason}). Mend or remove it, or leave unreadable images out with "
            "data.on_bad_image=skip."
        )
        self.where, self.reason = where, reason


def decode(
    images: ImageSource, index: int, size: int, max_pixels: int = PILLOW_LIMIT // 2
) -> NDArray[np.uint8]:
    """Decode one image to ``[3, size, size]`` or say which file cannot be read and why."""
    try:
        with images.open(index) as image:
            width, height = image.size
            if width * height <= max_pixels:
                square = upright_rgb(image).resize((size, size), Image.Resampling.BICUBIC)
                return np.array(square).transpose(2, 0, 1)
        reason = f"{width} x {height} pixels are more than data.max_pixels={max_pixels}"
    except Exception as error:  # decoders of foreign bytes fail in many ways; all mean: unreadable
        reason = f"{type(error).__name__}: {error}"[:300]
    raise UnreadableError(images.describe(index), reason)


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return the image in RGB, turned as its EXIF orientation says, transparency laid over white."""
    with suppress(Exception):  # a damaged EXIF block says nothing about the pixels
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow would clip at 255
        wide = np.asarray(image).astype(np.float64)
        image = Image.fromarray(np.clip(np.round(wide / 257), 0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image)
    return image if image.mode == "RGB" else image.convert("RGB")
