"""What a partition is, and the base of those that are decided by class counts.

Every counting rule only decides how many images of each class a client gets; which images these are is dealt
at random afterwards. Each training and each test image goes to exactly one client.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from fedcue.data.apportion import Counts, check_result, check_supply, deal
from fedcue.data.dataset import Dataset, Indices
from fedcue.errors import many
from fedcue.options import Options

NAMED = 5
"""Clients that are called by name in a note."""


@dataclass(frozen=True)
class LeftOut:
    """What a partition leaves out: clients and images of the dataset, classes of clients."""

    few_training: tuple[str, ...] = ()
    """Clients with too few training images."""
    few_test: tuple[str, ...] = ()
    """Clients with enough training images and too few test images."""
    test_images: int = 0
    """Test images that belong to nobody and show a class that no client trains on."""
    nobodys: int = 0
    """Images that would be used if it were known whose they are."""
    few_classes: tuple[str, ...] = ()
    """Clients without a class that was to be theirs, because their domain has too few images of it."""
    min_train: int = 0
    min_test: int = 0

    def notes(self) -> list[str]:
        """Say what is left out and which setting decides about it."""
        notes = []
        if self.few_training:
            notes.append(
                f"{counted(self.few_training)} left out: {_fewer(self.min_train, 'training')} "
                "(partition.min_train)."
            )
        if self.few_test:
            notes.append(
                f"{counted(self.few_test)} left out: {_fewer(self.min_test, 'test')}. "
                "Give partition=natural partition.untested=train to let them train, or data.test_share=0.2 "
                "to test them on a part of their training images."
            )
        if self.nobodys:
            notes.append(
                f"{many(self.nobodys, 'image')} of no client or domain: not used. Say whose each image is, "
                "or give partition=dirichlet, which does not ask."
            )
        if self.few_classes:
            notes.append(
                f"{counted(self.few_classes, ('holds', 'hold'))} fewer classes than meant: of some "
                "classes their domain has fewer training images than clients (partition.clients_per_domain)."
            )
        if self.test_images:
            notes.append(f"{self.test_images:,} test images show classes that no client trains on: not used.")
        return notes


_NOTHING = LeftOut()


def _fewer(least: int, kind: str) -> str:
    """Say how many images are missing: ``no test image``, ``fewer than 16 training images``."""
    return f"no {kind} image" if least == 1 else f"fewer than {least} {kind} images"


def counted(names: Sequence[str], verb: tuple[str, str] = ("is", "are")) -> str:
    """Count clients and name the first of them, as the beginning of a sentence."""
    few = ", ".join(names[:NAMED])
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    if len(names) == 1:
        return f"1 client ({few}) {verb[0]}"
    return f"{len(names):,} clients ({few}{more}) {verb[1]}"


@dataclass(frozen=True, eq=False)
class Partition:
    """The sorted training and test indices of every client, with its name and domain ("" if mixed)."""

    train: Sequence[Indices]
    test: Sequence[Indices]
    names: Sequence[str]
    domains: Sequence[str]
    left_out: LeftOut = _NOTHING
    rule: str = ""
    """Name of the partition that was made."""
    instead_of: str = ""
    """Name of the partition that was set and not made, because the dataset has clients of its own."""
    shares_images: ClassVar[bool] = False
    """Whether an image may belong to several clients."""

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.train)

    @cached_property
    def train_sizes(self) -> Indices:
        """Number of training images of each client."""
        return np.array([len(indices) for indices in self.train], dtype=np.int64)

    @cached_property
    def test_sizes(self) -> Indices:
        """Number of test images of each client."""
        return np.array([len(indices) for indices in self.test], dtype=np.int64)

    @property
    def notes(self) -> list[str]:
        """What a user should know: clients and images left out, clients that cannot be tested."""
        notes = []
        if self.instead_of:
            notes.append(
                f"The dataset's own {many(len(self), 'client')} are kept; partition={self.instead_of} is not "
                f"used. To share their images out anew, give partition={self.instead_of} on the command line."
            )
        notes += self.left_out.notes()
        untested = [self.names[client] for client in np.flatnonzero(self.test_sizes == 0).tolist()]
        if untested:
            notes.append(f"{counted(untested, ('has', 'have'))} no test image and cannot be tested.")
        return notes

    def pool(self, part: Literal["train", "test"]) -> Indices:
        """Return all images that any client has, sorted."""
        return np.unique(np.concatenate(list(self.train if part == "train" else self.test)))

    def class_counts(self, dataset: Dataset, part: Literal["train", "test"] = "train") -> Indices:
        """Count the images of each class that every client has, ``[clients, classes]``."""
        parts = self.train if part == "train" else self.test
        number = len(dataset.classes)
        return np.stack([np.bincount(dataset.labels[indices], minlength=number) for indices in parts])


class PartitionOptions(Options):
    """Base of every partition."""

    name: ClassVar[str]

    @property
    def planned_clients(self) -> int | None:
        """How many clients there will be, where the settings alone say so."""
        return None

    own_clients: Literal["keep", "mix"] = Field(
        "mix",
        description="clients that the data has already: keep them, or mix their images and share them out; "
        "kept unless the command line names a partition",
    )

    def split(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Return the clients: those the dataset has if they are to be kept, else shared out by this rule."""
        from fedcue.data.partition.natural import Natural

        if self.own_clients == "mix" or dataset.owners is None or isinstance(self, Natural):
            return replace(self.share(dataset, generator), rule=self.name)
        kept = Natural().share(dataset, generator)
        return replace(kept, rule=Natural.name, instead_of=self.name)

    @abstractmethod
    def share(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Share the dataset out among clients."""


class LabelSkew(PartitionOptions):
    """Base of the partitions that are decided by class counts alone."""

    clients: PositiveInt = Field(description="number of clients")

    @property
    def planned_clients(self) -> int:
        """As many as were asked for."""
        return self.clients

    @abstractmethod
    def counts(self, train: Indices, test: Indices, generator: np.random.Generator) -> Counts:
        """Decide how many of the ``train[c]`` and ``test[c]`` images of class c each client gets."""

    def share(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Share the dataset out so that every image goes to exactly one client."""
        everything = np.arange(len(dataset))
        train, test = share_out(self, dataset, everything, generator)
        names = [f"client-{number}" for number in range(self.clients)]
        return assemble(dataset, train, test, names)


def share_out(
    rule: LabelSkew, dataset: Dataset, members: Indices, generator: np.random.Generator, place: str = ""
) -> tuple[list[Indices], list[Indices]]:
    """Share ``members`` out by the counts of ``rule``; returns the training and test indices."""
    number = len(dataset.classes)
    train = members[~dataset.is_test[members]]
    test = members[dataset.is_test[members]]
    train_supply = np.bincount(dataset.labels[train], minlength=number)
    test_supply = np.bincount(dataset.labels[test], minlength=number)
    check_supply(train_supply, test_supply, rule.clients, dataset.classes, place)
    counts = rule.counts(train_supply, test_supply, generator)
    check_result(counts, place)
    return (
        [train[part] for part in deal(dataset.labels[train], counts.train, generator)],
        [test[part] for part in deal(dataset.labels[test], counts.test, generator)],
    )


def assemble(
    dataset: Dataset,
    train: Sequence[Indices],
    test: Sequence[Indices],
    names: Sequence[str],
    left_out: LeftOut = _NOTHING,
) -> Partition:
    """Return the partition of these images, each client with the domain of its training images."""
    domains = [_domain(dataset, images) for images in train]
    return Partition(tuple(train), tuple(test), tuple(names), tuple(domains), left_out)


def _domain(dataset: Dataset, images: Indices) -> str:
    """Return the domain that all of the images are of, if there is one."""
    if dataset.domains is None:
        return ""
    found = {
        dataset.domain_names[number] if number >= 0 else "" for number in dataset.domains[images].tolist()
    }
    return found.pop() if len(found) == 1 else ""
