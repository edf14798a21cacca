"""What can be set for every dataset, and what becomes of its images before they are shared out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt, field_validator
from pydantic.config import JsonDict

from fedcue.data.apportion import at_most, spread, stratified
from fedcue.data.dataset import Dataset, Indices, tell_once
from fedcue.data.image_sources import PILLOW_LIMIT
from fedcue.foreign import expanded
from fedcue.options import Options
from fedcue.rng import rng

_TEST_SHARE = 0.2
"""Default share of the training images to test on, where there is no test split."""

_MACHINE: JsonDict = {"scope": "machine"}


class DataOptions(Options):
    """The options every dataset has; a dataset adds where and how it is read."""

    name: ClassVar[str]

    root: Path | None = Field(
        None,
        description="your images, or a copy of a named dataset, which is downloaded without it",
        json_schema_extra=_MACHINE,
    )
    classes: tuple[str, ...] | None = Field(None, description="keep only these classes, in this order")
    first_classes: PositiveInt | None = Field(None, description="keep only so many classes, the first ones")
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the training images to test on: of all where there is no test split (default "
        "0.2) and, if given, of each client that has no test images",
    )
    imbalance: float | None = Field(
        None, ge=1, description="long tail: the first class keeps this many times the share of the last"
    )
    train_per_class: PositiveInt | None = Field(
        None, description="at most this many training images of a class (in each domain, where there are any)"
    )
    test_per_class: PositiveInt | None = Field(
        None, description="at most this many test images of a class (in each domain, where there are any)"
    )
    on_bad_image: Literal["error", "skip"] = Field("error", description="what an unreadable image does")
    max_pixels: int = Field(
        PILLOW_LIMIT // 2, gt=0, le=PILLOW_LIMIT, description="larger images count as unreadable"
    )
    augment: Literal["none", "flip+crop"] = Field("none", description="how training images are varied")
    cache_bytes: int = Field(
        2**31,
        ge=0,
        description="beyond this many bytes, decoded images lie in a file, not in memory",
        json_schema_extra=_MACHINE,
    )
    cache_folder: Path | None = Field(
        None, description="where that file lies; the system's temporary folder", json_schema_extra=_MACHINE
    )

    @field_validator("root")
    @classmethod
    def _absolute(cls, root: Path | None) -> Path | None:
        """Keep the place itself, so that a run's settings mean the same from any folder."""
        return None if root is None else expanded(root).absolute()

    @abstractmethod
    def read(self) -> Dataset:
        """Read the labels and find the images, exactly as the files give them."""

    def sketch(self) -> Dataset:
        """Return a dataset of the same shape as ``read`` would, reading as little as possible."""
        return self.read()

    def load(self, seed: int) -> Dataset:
        """Read the dataset, give it a test split if it has none, and subsample it as asked."""
        return self._finish(self.read(), seed)

    def outline(self, seed: int) -> Dataset:
        """Return what ``load`` would, perhaps without images and with estimated numbers, to plan a run."""
        return self._finish(self.sketch(), seed)

    def _finish(self, dataset: Dataset, seed: int) -> Dataset:
        for note in dataset.notes:
            tell_once(note)
        if self.classes is not None:
            dataset = dataset.keep_classes(self.classes)
        if self.first_classes is not None:
            dataset = dataset.keep_classes(dataset.classes[: self.first_classes])
        if not dataset.is_test.any():
            dataset = _with_test_split(dataset, self.test_share or _TEST_SHARE, rng(seed, "test split"))
        elif self.test_share is not None and dataset.owners is not None:
            dataset = _with_tested_clients(dataset, self.test_share, rng(seed, "test split"))
        if self.imbalance is not None:
            dataset = _long_tailed(dataset, self.imbalance, rng(seed, "imbalance"))
        return self._limited(dataset, seed)

    def _limited(self, dataset: Dataset, seed: int) -> Dataset:
        limits = {"train": (dataset.train, self.train_per_class), "test": (dataset.test, self.test_per_class)}
        if all(limit is None for _, limit in limits.values()):
            return dataset
        kept = [
            indices
            if limit is None
            else at_most(indices, _cells(dataset)[indices], limit, rng(seed, "subsample", part))
            for part, (indices, limit) in limits.items()
        ]
        return dataset.take(np.sort(np.concatenate(kept)))


def _cells(dataset: Dataset) -> Indices:
    """Return the number of each image's pair of domain and class."""
    if dataset.domains is None:
        return dataset.labels
    return dataset.domains * len(dataset.classes) + dataset.labels


def _with_test_split(dataset: Dataset, share: float, generator: np.random.Generator) -> Dataset:
    """Set a share of every class aside for testing, client by client where images have owners."""
    if dataset.owners is None:
        chosen = stratified(_cells(dataset), share, generator)
    else:
        owned = np.flatnonzero(dataset.owners >= 0)
        chosen = owned[spread(dataset.owners[owned], dataset.labels[owned], share, generator)]
    is_test = np.zeros(len(dataset), dtype=np.bool_)
    is_test[chosen] = True
    return replace(dataset, is_test=is_test)


def _with_tested_clients(dataset: Dataset, share: float, generator: np.random.Generator) -> Dataset:
    """Set a share of their training images aside for clients that have no test images, if others have."""
    assert dataset.owners is not None
    tested = np.unique(dataset.owners[dataset.is_test & (dataset.owners >= 0)])
    untested = np.flatnonzero((dataset.owners >= 0) & ~np.isin(dataset.owners, tested))
    if not len(tested) or not len(untested):
        return dataset
    is_test = dataset.is_test.copy()
    chosen = spread(dataset.owners[untested], dataset.labels[untested], share, generator)
    is_test[untested[chosen]] = True
    return replace(dataset, is_test=is_test)


def _long_tailed(dataset: Dataset, imbalance: float, generator: np.random.Generator) -> Dataset:
    """Keep a share of each class's training images that falls exponentially from 1 to 1/imbalance."""
    last = max(len(dataset.classes) - 1, 1)
    counts = np.bincount(dataset.labels[dataset.train], minlength=len(dataset.classes))
    limits = np.ceil(counts * imbalance ** (-np.arange(len(counts)) / last)).astype(np.int64)
    kept = at_most(dataset.train, dataset.labels[dataset.train], limits, generator)
    return dataset.take(np.sort(np.concatenate([kept, dataset.test])))
