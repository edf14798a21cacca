"""Where images come from, and how one is decoded: upright, RGB, square, uint8, whatever Pillow reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fedcue.data.dataset import ImageSource, Selection
from fedcue.errors import DataError
from fedcue.foreign import ordinary

PILLOW_LIMIT = 178_956_970
"""Pillow refuses any image with more pixels than this, whatever ``max_pixels`` says."""


FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Image formats that are read; others (some of which Pillow hands to other programs) are not."""


MEMORY = 2**30
"""Bytes that an image may take while it is decoded; more with a larger ``max_pixels`` than the default."""

_BAND = 2**20
"""Pixels that are changed together."""


_WHITE = (255, 255, 255, 255)


_LEAVE_OUT = "Mend or remove it, or leave unreadable images out with data.on_bad_image=skip."


class UnreadableError(DataError):
    """An image cannot be read."""

    def __init__(self, where: str, reason: str, advice: str = _LEAVE_OUT) -> None:
        super().__init__(f"Cannot read {where} ({reason}). {advice}")
        self.where, self.reason = where, reason


class UnknownRangeError(ValueError):
    """Nothing says which of an image's numbers is black and which is white."""


def decode(
    images: ImageSource, index: int, size: int, max_pixels: int = PILLOW_LIMIT // 2
) -> NDArray[np.uint8]:
    """Decode one image to ``[3, size, size]`` or say which file cannot be read and why."""
    try:
        with images.open(index) as image:
            width, height = image.size
            reason = f"{width} x {height} pixels are more than data.max_pixels={max_pixels}"
            if width * height <= max_pixels:
                if width * height * bytes_of_a_pixel(image) <= max(MEMORY, 12 * max_pixels):
                    square = upright_rgb(image).resize((size, size), Image.Resampling.BICUBIC)
                    return np.array(square).transpose(2, 0, 1)
                reason = f"{width} x {height} pixels of {image.format} in {image.mode} take too much memory"
    except FileNotFoundError:
        reason = "there is no such file"
    except UnidentifiedImageError:
        reason = f"it is no {', '.join(FORMATS)} image"
    except UnknownRangeError as error:
        reason = str(error)
    except DataError as error:
        reason = str(error).removeprefix(f"{images.describe(index)} ").removesuffix(".")
    except Exception as error:  # decoders of foreign bytes fail in many ways; all mean: unreadable
        reason = f"{type(error).__name__}: {error}"[:300]
    raise UnreadableError(images.describe(index), reason)


def bytes_of_a_pixel(image: Image.Image) -> int:
    """Return how many bytes each pixel takes at most while Pillow decodes it and it becomes RGB."""
    if image.format == "WEBP":  # its decoder keeps two pictures of its own, and hands out a third one
        return 20
    return 13 if image.mode in ("CMYK", "I") else 12


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return the image in RGB, turned as its EXIF orientation says, transparency laid over white.

    Beside the image itself only the result takes up room, whatever the mode: the rest goes band by band.
    """
    with suppress(Exception):  # a damaged EXIF block says nothing about the pixels
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow would clip at 255
        return _banded(image, _eight_bits)
    if image.mode == "F":
        _require_range(image)
    if image.has_transparency_data:
        return _banded(image, _over_white)
    return image if image.mode == "RGB" else image.convert("RGB")


def _banded(image: Image.Image, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Return the image in RGB, changed a few rows at a time."""
    out = Image.new("RGB", image.size)
    height = max(1, _BAND // max(1, image.width))
    for top in range(0, image.height, height):
        box = (0, top, image.width, min(top + height, image.height))
        out.paste(change(image.crop(box)).convert("RGB"), box)
    return out


def _eight_bits(band: Image.Image) -> Image.Image:
    wide = np.asarray(band).astype(np.float64)
    return Image.fromarray(np.clip(np.round(wide / 257), 0, 255).astype(np.uint8))


def _require_range(image: Image.Image) -> None:
    """Refuse floating-point numbers that Pillow would cut at 0 and 255: from 0 to 1 they would be black."""
    low, high = np.asarray(image.getextrema(), dtype=np.float64).tolist()
    if not (low >= 0 and 1 < high <= 255):
        raise UnknownRangeError(f"its numbers go from {low:.4g} to {high:.4g}, not to 255: save it in 8 bits")


def _over_white(band: Image.Image) -> Image.Image:
    band = band.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", band.size, _WHITE), band)


_MAX_FILE = 2**29
"""Bytes of an image file at most."""


@dataclass(frozen=True, eq=False)
class FileImages:
    """One file per image."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.paths)

    def open(self, index: int) -> Image.Image:
        """Open the file ``index``."""
        return Image.open(ordinary(self.paths[index], _MAX_FILE), formats=FORMATS)

    def content(self, index: int) -> bytes:
        """Return the bytes of the file ``index``."""
        return ordinary(self.paths[index], _MAX_FILE).read_bytes()

    def describe(self, index: int) -> str:
        """Return the path of the file ``index``."""
        return str(self.paths[index])


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Images in one uint8 array, ``[N, height, width]`` or ``[N, height, width, 3]``, perhaps on disk."""

    name: str
    pixels: NDArray[np.uint8]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.pixels)

    def open(self, index: int) -> Image.Image:
        """Return the image ``index``."""
        return Image.fromarray(np.ascontiguousarray(self.pixels[index]))

    def content(self, index: int) -> bytes:
        """Return the pixels of the image ``index``."""
        return bytes(self.pixels[index].tobytes())

    def describe(self, index: int) -> str:
        """Name the image ``index``."""
        return f"image {index} of {self.name}"


class JoinedImages:
    """Several sources in a row, numbered through."""

    def __init__(self, parts: Sequence[ImageSource]) -> None:
        self.parts = tuple(parts)
        self.starts = np.array([0, *accumulate(len(part) for part in parts)])

    def __len__(self) -> int:
        """Return the number of images of all parts."""
        return int(self.starts[-1])

    def open(self, index: int) -> Image.Image:
        """Open the image ``index``."""
        part, position = self._find(index)
        return part.open(position)

    def content(self, index: int) -> bytes:
        """Return the stored bytes of the image ``index``."""
        part, position = self._find(index)
        return part.content(position)

    def describe(self, index: int) -> str:
        """Name the image ``index``."""
        part, position = self._find(index)
        return part.describe(position)

    def _find(self, index: int) -> tuple[ImageSource, int]:
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.parts[number], index - int(self.starts[number])


@dataclass(frozen=True)
class NoImages:
    """Images that are known only by number: enough to plan a run, not to make it."""

    name: str
    number: int

    def __len__(self) -> int:
        """Return the number of images."""
        return self.number

    def open(self, index: int) -> Image.Image:
        """Refuse: there is nothing to open."""
        raise DataError(f"{self.describe(index)} is only outlined; load the dataset to read it.")

    def content(self, index: int) -> bytes:
        """Refuse: there is nothing to read."""
        raise DataError(f"{self.describe(index)} is only outlined; load the dataset to read it.")

    def describe(self, index: int) -> str:
        """Name the image ``index``."""
        return f"image {index} of {self.name}"


def only_outlined(images: ImageSource) -> bool:
    """Tell whether images, or those they were selected from, are known only by number."""
    while isinstance(images, Selection):
        images = images.source
    return isinstance(images, NoImages)
