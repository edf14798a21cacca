"""The embedded dataset: 1,797 handwritten digits, so that everything runs without a download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedcue.data.dataset import DataOptions, Dataset


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Images held in memory as uint8, ``[N, height, width]`` or ``[N, height, width, 3]``."""

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


class Digits(DataOptions):
    """Handwritten digits as scikit-learn ships them: 8 x 8 grey pixels, ten classes, no test split."""

    name: ClassVar[str] = "digits"

    def read(self) -> Dataset:
        """Read the digits from the installed scikit-learn."""
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]

        bunch = load_digits()
        pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)
        return Dataset(
            name=self.name,
            classes=tuple(str(name) for name in bunch.target_names),
            labels=bunch.target.astype(np.int64),
            is_test=np.zeros(len(pixels), dtype=np.bool_),
            images=ArrayImages(self.name, pixels),
        )
