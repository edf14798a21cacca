"""What a dataset is: labels in memory, images opened when they are needed."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedcue.errors import DataError, printable, unknown

Indices = NDArray[np.int64]

log = logging.getLogger(__name__)


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
    notes: tuple[str, ...] = ()
    """Notes for the user on how the files were read."""

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


@cache
def tell_once(note: str) -> None:
    """Log a note as a warning, the first time only."""
    log.warning("%s", printable(note))


Item = TypeVar("Item")


class OnDemand(Sequence[Item]):
    """Base of sequences whose items are made whenever they are asked for."""

    @abstractmethod
    def make(self, number: int) -> Item:
        """Make the item at a position that is known to exist."""

    @overload
    def __getitem__(self, number: int) -> Item: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Item]: ...

    def __getitem__(self, number: int | slice) -> Item | Sequence[Item]:
        """Make one item, or a list of some."""
        if isinstance(number, slice):
            return [self.make(one) for one in range(*number.indices(len(self)))]
        return self.make(range(len(self))[number])


@dataclass(frozen=True)
class Computed(OnDemand[Item]):
    """A sequence of ``length`` items, each the result of a function of its position."""

    length: int
    function: Callable[[int], Item]

    def __len__(self) -> int:
        """Return the number of items."""
        return self.length

    def make(self, number: int) -> Item:
        """Call the function."""
        return self.function(number)
