"""Pixels: any image Pillow reads, upright, RGB, square, uint8."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from fedcue.data.dataset import PILLOW_LIMIT, Dataset, ImageSource, Indices
from fedcue.errors import DataError

_WHITE = (255, 255, 255, 255)


def pixels(dataset: Dataset, indices: Indices, size: int, *, max_pixels: int = PILLOW_LIMIT // 2) -> Tensor:
    """Decode and resize these images, uint8 ``[n, 3, size, size]``; an unreadable one is an error."""
    out = torch.empty((len(indices), 3, size, size), dtype=torch.uint8)
    for row, index in enumerate(indices.tolist()):
        out[row] = torch.from_numpy(decode(dataset.images, index, size, max_pixels))
    return out


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
    raise DataError(
        f"Cannot read {images.describe(index)} ({reason}). Mend or remove it, or leave unreadable images "
        "out with data.on_bad_image=skip."
    )


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


def flip_and_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to an eighth of its size (mirrored at the edge) and flip half of them.

    Works on uint8 ``[B, 3, S, S]``; every image has its own shift and flip.
    """
    batch, channels, height, width = images.shape
    rows = _shifted(batch, height, generator)
    columns = _shifted(batch, width, generator)
    flip = torch.rand((batch, 1), generator=generator) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    number = torch.arange(batch)[:, None, None, None]
    channel = torch.arange(channels)[None, :, None, None]
    return images[number, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _shifted(batch: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw ``[B, size]`` source positions: a window of a line that is reflected at both ends."""
    margin = size // 8
    shift = torch.randint(-margin, margin + 1, (batch, 1), generator=generator)
    position = (torch.arange(size) + shift).abs()
    return torch.where(position < size, position, 2 * (size - 1) - position)
