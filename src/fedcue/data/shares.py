"""The counting rules behind the partitions: how many images of each class every client gets.

Input: the numbers of training and test images of each class. Output: two matrices ``[clients, classes]``
whose columns add up to these numbers exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcue.data.sampling import Integers, largest_remainder
from fedcue.errors import PartitionError


class Counts(NamedTuple):
    """How many training and test images of each class every client gets, ``[clients, classes]`` each."""

    train: Integers
    test: Integers


def iid(train: Integers, test: Integers, clients: int, generator: np.random.Generator) -> Counts:
    """Deal the shuffled training images in turn, so that client sizes differ by at most one."""
    labels = generator.permutation(np.repeat(np.arange(len(train)), train))
    client = np.arange(len(labels)) % clients
    counts = tally(client, labels, clients, len(train))
    return Counts(counts, share_test(counts, counts, test, generator))


def pathological(
    train: Integers,
    test: Integers,
    clients: int,
    classes_per_client: int,
    generator: np.random.Generator,
) -> Counts:
    """Give every client ``classes_per_client`` classes and every owner of a class a similar share of it.

    Shares are drawn from U(0.4, 0.6) and normalised; training and test images use the same shares.
    """
    present = np.flatnonzero(train)
    owned = draw_owners(len(present), clients, classes_per_client, generator)
    weights = np.zeros((clients, len(train)))
    weights[:, present] = np.where(owned, generator.uniform(0.4, 0.6, owned.shape), 0.0)
    counts = _no_owner_empty(largest_remainder(weights, train, generator), weights > 0, train)
    return Counts(counts, share_test(np.where(counts > 0, weights, 0.0), counts, test, generator))


def draw_owners(
    classes: int, clients: int, classes_per_client: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw which classes each client holds, ``[clients, classes]``.

    Clients in turn take the classes with the fewest owners so far (the most slots left), ties drawn at
    random, no class twice. Owner counts therefore never differ by more than one.
    """
    _check_owners(classes, clients, classes_per_client)
    owned = np.zeros((clients, classes), dtype=np.bool_)
    owners = np.zeros(classes)
    for client in range(clients):
        order = np.argsort(owners + generator.random(classes))  # whole numbers rank, fractions break ties
        taken = order[:classes_per_client]
        owned[client, taken] = True
        owners[taken] += 1
    return owned


def share_test(
    weights: NDArray[np.float64] | Integers, train: Integers, test: Integers, generator: np.random.Generator
) -> Integers:
    """Share the test images of each class by ``weights``, largest remainder, nobody left without any.

    Rounding can leave a client with none although it holds classes that have some: it then takes one from
    the client with the most.
    """
    counts = largest_remainder(weights, test, generator)
    for client in np.flatnonzero(counts.sum(axis=1) == 0):
        sums = counts.sum(axis=1)
        can_give = (counts > 0) & (train[client] > 0) & (sums > 1)[:, None]
        if can_give.any():
            donor, label = np.unravel_index(np.argmax(can_give * sums[:, None]), counts.shape)
            counts[donor, label] -= 1
            counts[client, label] += 1
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


def _check_owners(classes: int, clients: int, classes_per_client: int) -> None:
    if classes_per_client > classes:
        raise PartitionError(
            f"classes_per_client={classes_per_client}, but only {classes} classes have training images. Give "
            f"at most {classes}."
        )
    if clients * classes_per_client < classes:
        raise PartitionError(
            f"{clients} clients with {classes_per_client} classes each hold at most "
            f"{clients * classes_per_client} of {classes} classes, so some images would belong to nobody. "
            f"Use at least {-(-classes // classes_per_client)} clients or {-(-classes // clients)} classes "
            "per client."
        )


def _no_owner_empty(counts: Integers, owned: NDArray[np.bool_], available: Integers) -> Integers:
    """Let an owner that rounding left with nothing take one image from the largest owner of the class."""
    enough = available >= owned.sum(axis=0)
    for client, label in np.argwhere(owned & (counts == 0) & enough):
        counts[np.argmax(counts[:, label]), label] -= 1
        counts[client, label] += 1
    return counts


def tally(client: Integers, label: Integers, clients: int, classes: int) -> Integers:
    """Count the labels of each client, ``[clients, classes]``."""
    return np.bincount(client * classes + label, minlength=clients * classes).reshape(clients, classes)
