"""What a dataset is: labels in memory, images opened one by one when they are needed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, PositiveInt

from fedcue.data import sampling
from fedcue.errors import DataError, unknown
from fedcue.registry import Options
from fedcue.rng import rng

Indices = NDArray[np.int64]
PILLOW_LIMIT = 178_956_970
"""Pillow refuses any image with more pixels than this, whatever ``max_pixels`` says."""


FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Image formats that are read; others (some of which Pillow hands to other programs) are not."""


class ImageSource(Protocol):
    """Images that are opened one by one; reading them in index order is the cheapest."""

    def __len__(self) -> int:
        """Return the number of images."""

    def open(self, index: int) -> Image.Image:
        """Open the image ``index``; its pixels may be decoded later."""

    def content(self, index: int) -> bytes:
        """Return the stored bytes of the image ``index``, equal for equal images."""

    def describe(self, index: int) -> str:
        """Name the image ``index`` for an error message: its file, or its file and row."""


@dataclass(frozen=True)
class Selection:
    """Some images of a source, renumbered from zero."""

    source: ImageSource
    indices: Indices

    def __len__(self) -> int:
        """Return the number of selected images."""
        return len(self.indices)

    def open(self, index: int) -> Image.Image:
        """Open the selected image ``index``."""
        return self.source.open(int(self.indices[index]))

    def content(self, index: int) -> bytes:
        """Return the stored bytes of the selected image ``index``."""
        return self.source.content(int(self.indices[index]))

    def describe(self, index: int) -> str:
        """Name the selected image ``index``."""
        return self.source.describe(int(self.indices[index]))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images, training and test in one index space, with their domains and owners if known.

    ``domains`` and ``owners`` number the entries of ``domain_names`` and ``owner_names``; an owner of
    -1 is unknown. ``is_test`` is all false until a dataset without a test split is given one.
    """

    name: str
    classes: tuple[str, ...]
    labels: Indices
    is_test: NDArray[np.bool_]
    images: ImageSource
    domains: Indices | None = None
    domain_names: tuple[str, ...] = ()
    owners: Indices | None = None
    owner_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of images, training and test together."""
        return len(self.labels)

    @property
    def train(self) -> Indices:
        """Return the indices of the training images."""
        return np.flatnonzero(~self.is_test)

    @property
    def test(self) -> Indices:
        """Return the indices of the test images."""
        return np.flatnonzero(self.is_test)

    def take(self, indices: Indices) -> Dataset:
        """Return the dataset of these images only, renumbered in the given order."""
        images = Selection(self.images, indices)
        if isinstance(self.images, Selection):  # one step, however often images are taken
            images = Selection(self.images.source, self.images.indices[indices])
        return replace(
            self,
            labels=self.labels[indices],
            is_test=self.is_test[indices],
            images=images,
            domains=None if self.domains is None else self.domains[indices],
            owners=None if self.owners is None else self.owners[indices],
        )

    def keep_classes(self, classes: Iterable[str]) -> Dataset:
        """Return the dataset of these classes only, labelled in the given order."""
        wanted = tuple(classes)
        for name in wanted:
            if name not in self.classes:
                raise DataError(unknown(f"class of {self.name}", name, self.classes))
        new_label = np.full(len(self.classes), -1, dtype=np.int64)
        new_label[[self.classes.index(name) for name in wanted]] = np.arange(len(wanted))
        kept = self.take(np.flatnonzero(new_label[self.labels] >= 0))
        return replace(kept, classes=wanted, labels=new_label[kept.labels])


class DataOptions(Options):
    """The options every dataset has; a dataset adds where and how it is read."""

    name: ClassVar[str]

    root: Path | None = Field(
        None,
        description="folder of a local copy; without it the data is downloaded",
        json_schema_extra={"scope": "machine"},
    )
    classes: tuple[str, ...] | None = Field(None, description="keep only these classes, in this order")
    test_share: float = Field(0.2, gt=0, lt=1, description="share set aside where there is no test split")
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
        json_schema_extra={"scope": "machine"},
    )
    cache_folder: Path | None = Field(
        None,
        description="where that file lies; the system's temporary folder",
        json_schema_extra={"scope": "machine"},
    )

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
        if self.classes is not None:
            dataset = dataset.keep_classes(self.classes)
        if not dataset.is_test.any():
            dataset = _with_test_split(dataset, self.test_share, rng(seed, "test split"))
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
            else sampling.limit(indices, _cells(dataset)[indices], limit, rng(seed, "subsample", part))
            for part, (indices, limit) in limits.items()
        ]
        return dataset.take(np.sort(np.concatenate(kept)))


def _cells(dataset: Dataset) -> Indices:
    """Return the number of each image's pair of domain and class."""
    if dataset.domains is None:
        return dataset.labels
    return dataset.domains * len(dataset.classes) + dataset.labels


def _with_test_split(dataset: Dataset, share: float, generator: np.random.Generator) -> Dataset:
    """Set a share aside for testing: of every owner's images where there are owners, else of every class."""
    strata = _cells(dataset) if dataset.owners is None else dataset.owners
    chosen = sampling.stratified(strata, share, generator)
    is_test = np.zeros(len(dataset), dtype=np.bool_)
    is_test[chosen] = True
    if dataset.owners is not None:
        is_test[dataset.owners < 0] = False
    return replace(dataset, is_test=is_test)


def _long_tailed(dataset: Dataset, imbalance: float, generator: np.random.Generator) -> Dataset:
    """Keep a share of each class's training images that falls exponentially from 1 to 1/imbalance."""
    last = max(len(dataset.classes) - 1, 1)
    counts = np.bincount(dataset.labels[dataset.train], minlength=len(dataset.classes))
    limits = np.ceil(counts * imbalance ** (-np.arange(len(counts)) / last)).astype(np.int64)
    kept = sampling.limit(dataset.train, dataset.labels[dataset.train], limits, generator)
    return dataset.take(np.sort(np.concatenate([kept, dataset.test])))
