"""A client: which images it trains, validates and is tested on, and its class priors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedcue.data.apportion import shuffled_rank, stratified
from fedcue.data.dataset import Dataset, Indices, OnDemand, tell_once
from fedcue.data.partition import Partition
from fedcue.errors import DataError, PartitionError
from fedcue.rng import rng

_HeldOut = float | int | Sequence[int]
"""Clients that never train: a share below 1, a count, or their ids."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's data: sorted indices into the dataset and the labels that go with them."""

    id: int
    name: str
    domain: str
    heldout: bool
    train: Indices
    test: Indices
    validation: Indices
    train_labels: Indices
    test_labels: Indices
    validation_labels: Indices
    classes: int

    @cached_property
    def class_counts(self) -> Indices:
        """How many training images of each class the client has, ``[C]``."""
        return np.bincount(self.train_labels, minlength=self.classes)

    @cached_property
    def class_priors(self) -> NDArray[np.float64]:
        """Share of each class among the labels the client trains on, ``[C]``."""
        return self.class_counts / len(self.train_labels)

    def tested(self, on: Literal["test", "validation"]) -> tuple[Indices, Indices]:
        """Return the images the client is tested on, and their labels."""
        return (self.test, self.test_labels) if on == "test" else (self.validation, self.validation_labels)

    @property
    def indices(self) -> Indices:
        """Return every index the client uses."""
        return np.concatenate([self.train, self.validation, self.test])


@dataclass(frozen=True, eq=False)
class Clients(OnDemand[ClientData]):
    """The clients of a partition, each made when it is asked for and not kept in memory."""

    dataset: Dataset
    partition: Partition
    heldout: NDArray[np.bool_]
    """Of each client, whether it never trains."""
    validation_share: float
    seed: int
    bad: Indices
    """Images that could not be read and belong to nobody."""

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.partition)

    @cached_property
    def train_sizes(self) -> Indices:
        """Number of images each client trains on."""
        if self.validation_share or len(self.bad):
            return np.array([len(client.train) for client in self])
        return self.partition.train_sizes

    @cached_property
    def test_sizes(self) -> Indices:
        """Number of images each client is tested on."""
        return np.array([len(client.test) for client in self]) if len(self.bad) else self.partition.test_sizes

    def make(self, number: int) -> ClientData:
        """Set validation images aside, drop unreadable ones."""
        dataset, partition = self.dataset, self.partition
        train, test = partition.train[number], partition.test[number]
        generator = rng(self.seed, "validation", number)
        chosen = _choose_validation(dataset.labels[train], self.validation_share, generator)
        parts = (np.delete(train, chosen), test, train[chosen])
        name, domain = partition.names[number], partition.domains[number]
        client = _client(dataset, number, name, domain, bool(self.heldout[number]), *parts)
        return _without(dataset, client, self.bad) if len(self.bad) else client

    def without(self, bad: Indices) -> Clients:
        """Return the clients without the images ``bad``; refuse if a client is left without any."""
        if not len(bad):
            return self
        kept = replace(self, bad=bad)
        for _ in kept:  # making a client refuses one without images
            pass
        return kept


def make_clients(
    dataset: Dataset, partition: Partition, *, heldout: _HeldOut = 0, validation_share: float = 0.0, seed: int
) -> Clients:
    """Return the clients of a partition: some held out, validation images set aside."""
    if not 0 <= validation_share < 1:
        raise PartitionError(f"validation_share={validation_share} is not a share: give 0 <= share < 1.")
    for note in partition.notes:
        tell_once(note)
    out = np.zeros(len(partition), dtype=np.bool_)
    out[choose_heldout(partition, heldout, rng(seed, "heldout"))] = True
    return Clients(dataset, partition, out, validation_share, seed, np.empty(0, dtype=np.int64))


def choose_heldout(partition: Partition, heldout: _HeldOut, generator: np.random.Generator) -> Indices:
    """Choose the clients that never train, spread evenly over the domains; sorted ids."""
    total = len(partition)
    if isinstance(heldout, Sequence):
        ids = np.unique(np.array(list(heldout), dtype=np.int64))
        if len(ids) and (ids[0] < 0 or ids[-1] >= total):
            raise PartitionError(f"Held-out clients {list(heldout)} must be ids from 0 to {total - 1}.")
    else:
        count = round(heldout * total) if heldout < 1 else int(heldout)
        if heldout < 0 or (heldout >= 1 and count != heldout):
            raise PartitionError(
                f"heldout={heldout} is neither a share below 1, a count, nor a list of ids. "
                "Give one of these, such as 0.1, 2 or [0, 3]."
            )
        if count == 0:
            return np.empty(0, dtype=np.int64)
        _, domain = np.unique(np.array(partition.domains), return_inverse=True)
        turn = shuffled_rank(domain, generator)  # 0 for one random client of each domain, then 1, ...
        ids = np.sort(np.lexsort((generator.random(total), turn))[:count])
    if len(ids) >= total:
        raise PartitionError(
            f"heldout={heldout} leaves none of {total} clients to train. Hold out at most {total - 1}."
        )
    return ids


def drop_images(dataset: Dataset, clients: Iterable[ClientData], bad: Indices) -> tuple[ClientData, ...]:
    """Return some clients without the images ``bad``; refuse if a client is left without any."""
    return tuple(_without(dataset, client, bad) if len(bad) else client for client in clients)


def _without(dataset: Dataset, client: ClientData, bad: Indices) -> ClientData:
    train, test, validation = (
        part[~np.isin(part, bad)] for part in (client.train, client.test, client.validation)
    )
    if not len(train) or (len(client.test) and not len(test)):
        raise DataError(
            f"Client {client.id} ({client.name}) has no readable training or test image left. Mend the "
            "files (fedcue data check lists them) or hold fewer images back."
        )
    return _client(dataset, client.id, client.name, client.domain, client.heldout, train, test, validation)


def _client(
    dataset: Dataset,
    number: int,
    name: str,
    domain: str,
    heldout: bool,
    train: Indices,
    test: Indices,
    validation: Indices,
) -> ClientData:
    return ClientData(
        id=number,
        name=name,
        domain=domain,
        heldout=heldout,
        train=train,
        test=test,
        validation=validation,
        train_labels=dataset.labels[train],
        test_labels=dataset.labels[test],
        validation_labels=dataset.labels[validation],
        classes=len(dataset.classes),
    )


def _choose_validation(labels: Indices, share: float, generator: np.random.Generator) -> Indices:
    """Choose positions of ``labels`` for validation: stratified, at least one if two images can be spared."""
    if share == 0 or len(labels) < 2:
        return np.empty(0, dtype=np.int64)
    chosen = stratified(labels, share, generator)
    return chosen if len(chosen) else generator.integers(len(labels), size=1)


@dataclass(frozen=True, eq=False)
class Pool:
    """All training images in one place, as no federation has them: for the bound that pooling gives."""

    like: ClientData
    """A client that lends the pool its other images, which are never used."""
    images: Indices
    labels: Indices
    clients: int
    """How many clients they are of."""

    @classmethod
    def of(cls, clients: Iterable[ClientData]) -> Pool:
        """Pool what clients train on; those held out give nothing."""
        training = [client for client in clients if not client.heldout]
        images = np.concatenate([client.train for client in training])
        labels = np.concatenate([client.train_labels for client in training])
        return cls(training[0], images, labels, len(training))

    def drawn(self, visits: int, generator: np.random.Generator) -> ClientData:
        """Draw as many different images as so many clients have, evenly from all."""
        size = max(1, round(len(self.images) * visits / self.clients))
        chosen = np.sort(generator.choice(len(self.images), size=size, replace=False))
        return replace(self.like, train=self.images[chosen], train_labels=self.labels[chosen])
