"""How a dataset is shared out among clients: option classes over the counting rules of ``shares``.

Every rule only decides how many images of each class a client gets; which images these are is dealt at
random afterwards. Each training and each test image goes to exactly one client.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from fedcue.data import dirichlet, sampling, shares
from fedcue.data.dataset import Dataset, Indices
from fedcue.errors import PartitionError
from fedcue.registry import Options


@dataclass(frozen=True, eq=False)
class Partition:
    """The sorted training and test indices of every client, with its name and domain ("" if mixed)."""

    train: Sequence[Indices]
    test: Sequence[Indices]
    names: Sequence[str]
    domains: Sequence[str]
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

    @abstractmethod
    def split(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Share the dataset out among clients."""


class LabelSkew(PartitionOptions):
    """Base of the partitions that are decided by class counts alone."""

    clients: PositiveInt = Field(description="number of clients")

    @abstractmethod
    def counts(self, train: Indices, test: Indices, generator: np.random.Generator) -> shares.Counts:
        """Decide how many of the ``train[c]`` and ``test[c]`` images of class c each client gets."""

    def split(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Share the dataset out so that every image goes to exactly one client."""
        everything = np.arange(len(dataset))
        train, test = _split(self, dataset, everything, generator)
        names = [f"client-{number}" for number in range(self.clients)]
        return _partition(dataset, train, test, names)


class IID(LabelSkew):
    """Equal parts drawn at random."""

    name: ClassVar[str] = "iid"

    def counts(self, train: Indices, test: Indices, generator: np.random.Generator) -> shares.Counts:
        """Deal the shuffled training images in turn; the test images follow the training counts."""
        return shares.iid(train, test, self.clients, generator)


class Pathological(LabelSkew):
    """Every client holds ``classes_per_client`` classes; every class is held by equally many clients."""

    name: ClassVar[str] = "pathological"

    classes_per_client: PositiveInt = Field(description="number of classes a client holds")

    def counts(self, train: Indices, test: Indices, generator: np.random.Generator) -> shares.Counts:
        """Draw the owners of each class, then their shares of its training and test images."""
        return shares.pathological(train, test, self.clients, self.classes_per_client, generator)


class Dirichlet(LabelSkew):
    """Label proportions drawn from a Dirichlet distribution with concentration ``alpha``.

    ``equal``: clients of equal size, each with its own class proportions (as FedDyn). ``class``: each
    class has its own proportions over the clients, whose sizes differ (as NIID-Bench).
    """

    name: ClassVar[str] = "dirichlet"

    alpha: float = Field(gt=0, description="small: few classes per client; large: nearly iid")
    flavour: Literal["equal", "class"] = Field("equal", description="what the proportions are drawn for")
    min_train: PositiveInt = Field(10, description="smallest client that flavour=class accepts")

    def counts(self, train: Indices, test: Indices, generator: np.random.Generator) -> shares.Counts:
        """Draw the proportions and turn them into counts."""
        if self.flavour == "equal":
            return dirichlet.equal_sizes(train, test, self.clients, self.alpha, generator)
        return dirichlet.by_class(train, test, self.clients, self.alpha, self.min_train, generator)


class ByDomain(PartitionOptions):
    """Every client sees one domain, and optionally only ``classes_per_client`` of the classes."""

    name: ClassVar[str] = "domain"

    clients_per_domain: PositiveInt = Field(description="number of clients of each domain")
    classes_per_client: PositiveInt | None = Field(None, description="number of classes a client holds")

    def split(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Partition every domain on its own: pathologically with ``classes_per_client``, else iid."""
        if dataset.domains is None:
            raise PartitionError(
                f"Dataset {dataset.name!r} has no domains. Use partition=iid, pathological or dirichlet, or "
                "name the domain column with data.domain."
            )
        rule = self._rule()
        train: list[Indices] = []
        test: list[Indices] = []
        names: list[str] = []
        for number, domain in enumerate(dataset.domain_names):
            members = np.flatnonzero(dataset.domains == number)
            parts = _split(rule, dataset, members, generator, place=f" of domain {domain!r}")
            train.extend(parts[0])
            test.extend(parts[1])
            names.extend(f"{domain}-{client}" for client in range(self.clients_per_domain))
        return _partition(dataset, train, test, names)

    def _rule(self) -> LabelSkew:
        if self.classes_per_client is None:
            return IID(clients=self.clients_per_domain)
        return Pathological(clients=self.clients_per_domain, classes_per_client=self.classes_per_client)


class Natural(PartitionOptions):
    """One client per owner of the images: a user, a camera, a hospital."""

    name: ClassVar[str] = "natural"

    min_train: PositiveInt = Field(16, description="owners with fewer training images are left out")
    min_test: PositiveInt = Field(1, description="owners with fewer test images are left out")
    clients: PositiveInt | None = Field(None, description="draw this many of the owners; all by default")

    def split(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Give every owner with enough images its own, and leave the others out."""
        if dataset.owners is None:
            raise PartitionError(
                f"Dataset {dataset.name!r} does not say whose the images are. Use another partition, a "
                "federated folder, or name the client column with data.client."
            )
        number = len(dataset.owner_names)
        train = sampling.by_owner(np.where(dataset.is_test, -1, dataset.owners), number)
        test = sampling.by_owner(np.where(dataset.is_test, dataset.owners, -1), number)
        sizes = [(len(train[owner]), len(test[owner])) for owner in range(number)]
        chosen = [k for k, (a, b) in enumerate(sizes) if a >= self.min_train and b >= self.min_test]
        wanted = 1 if self.clients is None else self.clients
        if len(chosen) < wanted:
            raise PartitionError(
                f"{len(chosen)} of {number} owners have at least {self.min_train} training and "
                f"{self.min_test} test images, {wanted} are needed. Lower partition.min_train, "
                "partition.min_test or partition.clients."
            )
        if self.clients is not None:
            chosen = sorted(generator.choice(chosen, self.clients, replace=False).tolist())
        names = [dataset.owner_names[owner] for owner in chosen]
        return _partition(dataset, [train[k] for k in chosen], [test[k] for k in chosen], names)


def _split(
    rule: LabelSkew, dataset: Dataset, members: Indices, generator: np.random.Generator, place: str = ""
) -> tuple[list[Indices], list[Indices]]:
    """Share ``members`` out by the counts of ``rule``; returns the training and test indices."""
    number = len(dataset.classes)
    train = members[~dataset.is_test[members]]
    test = members[dataset.is_test[members]]
    train_supply = np.bincount(dataset.labels[train], minlength=number)
    test_supply = np.bincount(dataset.labels[test], minlength=number)
    shares.check_supply(train_supply, test_supply, rule.clients, dataset.classes, place)
    counts = rule.counts(train_supply, test_supply, generator)
    shares.check_result(counts, place)
    return (
        [train[part] for part in sampling.deal(dataset.labels[train], counts.train, generator)],
        [test[part] for part in sampling.deal(dataset.labels[test], counts.test, generator)],
    )


def _partition(
    dataset: Dataset, train: Sequence[Indices], test: Sequence[Indices], names: Sequence[str]
) -> Partition:
    domains = tuple(_domain(dataset, indices) for indices in train)
    return Partition(tuple(train), tuple(test), tuple(names), domains)


def _domain(dataset: Dataset, indices: Indices) -> str:
    if dataset.domains is None:
        return ""
    found = np.unique(dataset.domains[indices])
    return dataset.domain_names[found[0]] if len(found) == 1 else ""
