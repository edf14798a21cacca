"""The counting rules behind the partitions: how many images of each class every client gets.

Input: the numbers of training and test images of each class. Output: two matrices ``[clients, classes]``
whose columns add up to these numbers exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcue.data.apportion import Integers, largest_remainder
from fedcue.errors import PartitionError


class Counts(NamedTuple):
    """How many training and test images of each class every client gets, ``[clients, classes]`` each."""

    train: Integers
    test: Integers


def share_test(
    weights: NDArray[np.float64] | Integers, train: Integers, test: Integers, generator: np.random.Generator
) -> Integers:
    """Share the test images of each class by ``weights``, largest remainder, nobody left without any.

    Rounding can leave a client with none although it holds classes that have some: it then takes one from
    the client with the most.
    """
    counts = largest_remainder(weights, test, generator)
    sums = counts.sum(axis=1)
    for client in np.flatnonzero(sums == 0).tolist():
        held = np.flatnonzero(train[client])
        can_give = (counts[:, held] > 0) & (sums > 1)[:, None]
        if can_give.any():
            donor, place = np.unravel_index(np.argmax(can_give * sums[:, None]), can_give.shape)
            counts[donor, held[place]] -= 1
            counts[client, held[place]] += 1
            sums[[donor, client]] += [-1, 1]
    return counts


def check_supply(
    train: Integers, test: Integers, clients: int, classes: Sequence[str], place: str = ""
) -> None:
    """Refuse what no rule could share out: too few images, or test images of an untrained class."""
    for kind, available in (("training", train), ("test", test)):
        if available.sum() < clients:
            raise PartitionError(
                f"{clients} clients cannot share {available.sum()} {kind} images{place}: every client needs "
                "at least one. Use fewer clients or more data."
            )
    orphans = [classes[label] for label in np.flatnonzero((train == 0) & (test > 0)).tolist()]
    if orphans:
        raise PartitionError(
            f"No training image{place} shows {', '.join(orphans[:5])}{' ...' if len(orphans) > 5 else ''}, "
            "yet test images do. Leave these classes out with data.classes, or add training images."
        )


def check_result(counts: Counts, place: str = "") -> None:
    """Refuse a partition in which a client has nothing to train on or nothing to be tested on."""
    for kind, matrix in (("training", counts.train), ("test", counts.test)):
        empty = np.flatnonzero(matrix.sum(axis=1) == 0)
        if len(empty):
            raise PartitionError(
                f"{len(empty)} of {len(matrix)} clients{place} would have no {kind} image (the first is "
                f"client {empty[0]}). Use fewer clients, more classes per client, or more {kind} images."
            )


def tally(client: Integers, label: Integers, clients: int, classes: int) -> Integers:
    """Count the labels of each client, ``[clients, classes]``."""
    return np.bincount(client * classes + label, minlength=clients * classes).reshape(clients, classes)
