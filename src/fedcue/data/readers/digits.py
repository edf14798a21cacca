"""The embedded dataset: 1,797 handwritten digits, so that everything runs without a download."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import ArrayImages
from fedcue.data.options import DataOptions


class Digits(DataOptions):
    """Handwritten digits as scikit-learn ships them: 8 x 8 grey pixels, ten classes, no test split."""

    name: ClassVar[str] = "digits"

    def read(self) -> Dataset:
        """Read the digits from the installed scikit-learn."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)
        return Dataset(
            name=self.name,
            classes=tuple(str(name) for name in bunch.target_names),
            labels=bunch.target.astype(np.int64),
            is_test=np.zeros(len(pixels), dtype=np.bool_),
            images=ArrayImages(self.name, pixels),
        )
