"""The embedded dataset: 1,797 handwritten digits, so that everything runs without a download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import ArrayImages
from fedcue.data.options import DataOptions
from fedcue.errors import DataError


class Digits(DataOptions):
    """Handwritten digits as scikit-learn ships them: 8 x 8 grey pixels, ten classes, no test split."""

    name: ClassVar[str] = "digits"

    def read(self) -> Dataset:
        """Read the digits from the installed scikit-learn."""
        package = find_spec("sklearn")  # importing it would take longer than all else of a start
        if package is None or package.origin is None:
            raise DataError(
                "data=digits comes with scikit-learn. Give pip install scikit-learn, or other data."
            )
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        table = np.loadtxt(file, delimiter=",")
        pixels = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        return Dataset(
            name=self.name,
            classes=tuple(map(str, range(10))),
            labels=table[:, -1].astype(np.int64),
            is_test=np.zeros(len(pixels), dtype=np.bool_),
            images=ArrayImages(self.name, pixels),
        )
