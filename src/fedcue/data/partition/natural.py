"""The clients that the data itself has: a user, a camera, a hospital."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from fedcue.data.apportion import NOBODY, by_owner, deal, share_test
from fedcue.data.dataset import Dataset, Indices
from fedcue.data.partition.base import LeftOut, Partition, PartitionOptions, assemble
from fedcue.errors import PartitionError, many

Parts = Sequence[Indices]


class Natural(PartitionOptions):
    """One client per owner of the images: a user, a camera, a hospital.

    Test images without an owner are shared out among the clients that train on their class.
    """

    name: ClassVar[str] = "natural"

    min_train: PositiveInt = Field(1, description="owners with fewer training images are left out")
    min_test: NonNegativeInt = Field(1, description="owners with fewer test images are untested")
    untested: Literal["drop", "train"] = Field(
        "drop", description="what untested owners do: nothing, or train without being tested"
    )
    clients: PositiveInt | None = Field(None, description="draw this many of the owners; all by default")

    @property
    def planned_clients(self) -> int | None:
        """As many as were asked for."""
        return self.clients

    def share(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Give every owner with enough images its own, and leave the others out."""
        if dataset.owners is None:
            raise PartitionError(
                f"Dataset {dataset.name!r} does not say whose the images are. Use another partition. Or say "
                "who the clients are: data.layout=clients for folders CLIENT/CLASS/x.jpg, data.client=COLUMN "
                "for tables, a column client in a manifest."
            )
        number = len(dataset.owner_names)
        train = by_owner(np.where(dataset.is_test, NOBODY, dataset.owners), number)
        enough = [owner for owner in range(number) if len(train[owner]) >= self.min_train]
        chosen, test = self._tested(dataset, enough, train, generator)
        wanted = 1 if self.clients is None else self.clients
        if len(chosen) < wanted:
            raise PartitionError(
                f"{len(chosen):,} of {many(number, 'client')} of the data have at least "
                f"{many(self.min_train, 'training image')} and {many(self.min_test, 'test image')}; "
                f"{wanted:,} must have. Set test images aside with data.test_share=0.2, lower "
                "partition.min_train, partition.min_test or partition.clients, or let clients train without "
                "being tested with partition.untested=train."
            )
        if self.clients is not None:
            chosen = sorted(generator.choice(chosen, self.clients, replace=False).tolist())
            chosen, test = self._tested(dataset, chosen, train, generator)
        names = [dataset.owner_names[owner] for owner in chosen]
        left_out = self._left_out(dataset, chosen, enough, train)
        return assemble(dataset, [train[owner] for owner in chosen], test, names, left_out)

    def _tested(
        self, dataset: Dataset, owners: list[int], train: Parts, generator: np.random.Generator
    ) -> tuple[list[int], list[Indices]]:
        """Return those of the owners that become clients, and the test images of each."""
        while owners:
            test = _test_images(dataset, owners, train, generator)
            if self.untested == "train":
                return owners, [part if len(part) >= self.min_test else part[:0] for part in test]
            kept = [place for place, part in enumerate(test) if len(part) >= self.min_test]
            if len(kept) == len(owners):
                return owners, test
            owners = [owners[place] for place in kept]  # what they had is shared out anew
        return [], []

    def _left_out(self, dataset: Dataset, chosen: list[int], enough: list[int], train: Parts) -> LeftOut:
        assert dataset.owners is not None
        names = dataset.owner_names
        trained = np.unique(dataset.labels[np.concatenate([train[owner] for owner in chosen])])
        large, kept = set(enough), set(chosen if self.clients is None else enough)
        return LeftOut(
            few_training=tuple(name for owner, name in enumerate(names) if owner not in large),
            few_test=tuple(name for owner, name in enumerate(names) if owner in large - kept),
            nobodys=int((~dataset.is_test & (dataset.owners < 0)).sum()),
            test_images=int((~np.isin(dataset.labels[_ownerless(dataset)], trained)).sum()),
            min_train=self.min_train,
            min_test=self.min_test,
        )


def _ownerless(dataset: Dataset) -> Indices:
    """Return the test images without an owner."""
    assert dataset.owners is not None
    return np.flatnonzero(dataset.is_test & (dataset.owners < 0))


def _test_images(
    dataset: Dataset, owners: list[int], train: Parts, generator: np.random.Generator
) -> list[Indices]:
    """Return the test images of each owner: its own, and its share of those without an owner."""
    assert dataset.owners is not None
    everybody = by_owner(np.where(dataset.is_test, dataset.owners, NOBODY), len(dataset.owner_names))
    own = [everybody[owner] for owner in owners]
    free = _ownerless(dataset)
    if not len(free):
        return own
    number = len(dataset.classes)
    held = np.stack([np.bincount(dataset.labels[train[owner]], minlength=number) for owner in owners])
    free = free[held.max(axis=0)[dataset.labels[free]] > 0]
    counts = share_test(held, held, np.bincount(dataset.labels[free], minlength=number), generator)
    shared = deal(dataset.labels[free], counts, generator)
    return [np.sort(np.concatenate([mine, free[more]])) for mine, more in zip(own, shared, strict=True)]
