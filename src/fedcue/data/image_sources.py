"""Where images come from: files, arrays, several sources in a row, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedcue.data.dataset import ImageSource, Selection
from fedcue.data.decode import FORMATS
from fedcue.errors import DataError
from fedcue.foreign import ordinary

MAX_FILE = 2**29
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
        return Image.open(ordinary(self.paths[index], MAX_FILE), formats=FORMATS)

    def content(self, index: int) -> bytes:
        """Return the bytes of the file ``index``."""
        return ordinary(self.paths[index], MAX_FILE).read_bytes()

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
