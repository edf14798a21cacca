"""A client: which images it trains, validates and is tested on, and its class priors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcue.data import sampling
from fedcue.data.dataset import Dataset, Indices
from fedcue.data.partition import Partition
from fedcue.errors import DataError, PartitionError
from fedcue.rng import rng

HeldOut = float | int | Sequence[int]
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
    class_priors: NDArray[np.float64]
    """Share of each class among the labels the client trains on, ``[C]``."""

    @property
    def indices(self) -> Indices:
        """Return every index the client uses."""
        return np.concatenate([self.train, self.validation, self.test])


def make_clients(
    dataset: Dataset, partition: Partition, *, heldout: HeldOut = 0, validation_share: float = 0.0, seed: int
) -> tuple[ClientData, ...]:
    """Make the clients of a partition: hold some out, set validation images aside, count the classes."""
    if not 0 <= validation_share < 1:
        raise PartitionError(f"validation_share={validation_share} is not a share: give 0 <= share < 1.")
    out = set(choose_heldout(partition, heldout, rng(seed, "heldout")).tolist())
    clients = []
    for number, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        generator = rng(seed, "validation", number)
        chosen = _choose_validation(dataset.labels[train], validation_share, generator)
        parts = (np.delete(train, chosen), test, train[chosen])
        name, domain = partition.names[number], partition.domains[number]
        clients.append(_client(dataset, number, name, domain, number in out, *parts))
    return tuple(clients)


def choose_heldout(partition: Partition, heldout: HeldOut, generator: np.random.Generator) -> Indices:
    """Choose the clients that never train, spread evenly over the domains; sorted ids."""
    total = len(partition)
    if isinstance(heldout, Sequence):
        ids = np.unique(np.array(list(heldout), dtype=np.int64))
        if len(ids) and (ids[0] < 0 or ids[-1] >= total):
            raise PartitionError(f"Held-out clients {list(heldout)} must be ids from 0 to {total - 1}.")
    else:
        count = round(heldout * total) if heldout < 1 else int(heldout)
        if heldout < 0 or (heldout >= 1 and count != heldout):
            raise PartitionError(f"heldout={heldout} is neither a share below 1, a count, nor a list of ids.")
        _, domain = np.unique(np.array(partition.domains), return_inverse=True)
        turn = sampling.shuffled_rank(
            domain, generator
        )  # 0 for one random client of each domain, then 1, ...
        ids = np.sort(np.lexsort((generator.random(total), turn))[:count])
    if len(ids) >= total:
        raise PartitionError(
            f"heldout={heldout} leaves none of {total} clients to train. Hold out at most {total - 1}."
        )
    return ids


def drop_images(dataset: Dataset, clients: Sequence[ClientData], bad: Indices) -> tuple[ClientData, ...]:
    """Return the clients without the images ``bad``; refuse if a client is left without any."""
    if not len(bad):
        return tuple(clients)
    kept = []
    for client in clients:
        parts = [part[~np.isin(part, bad)] for part in (client.train, client.test, client.validation)]
        if not len(parts[0]) or not len(parts[1]):
            raise DataError(
                f"Client {client.id} ({client.name}) has no readable training or test image left. Mend the "
                "files (fedcue data check lists them) or hold fewer images back."
            )
        kept.append(_client(dataset, client.id, client.name, client.domain, client.heldout, *parts))
    return tuple(kept)


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
    counts = np.bincount(dataset.labels[train], minlength=len(dataset.classes))
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
        class_priors=counts / counts.sum(),
    )


def _choose_validation(labels: Indices, share: float, generator: np.random.Generator) -> Indices:
    """Choose positions of ``labels`` for validation: stratified, at least one if two images can be spared."""
    if share == 0 or len(labels) < 2:
        return np.empty(0, dtype=np.int64)
    chosen = sampling.stratified(labels, share, generator)
    return chosen if len(chosen) else generator.integers(len(labels), size=1)
