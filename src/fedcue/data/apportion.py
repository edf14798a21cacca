"""Exact and seeded ways to share things out, and how many images of each class every client gets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcue.errors import PartitionError

Integers = NDArray[np.int64]

NOBODY = -1
"""The owner of what belongs to nobody."""

BLOCK = 2_000_000
"""Numbers of a table that is made in blocks of rows, at most."""


def largest_remainder(
    weights: NDArray[np.float64] | Integers, totals: Integers, generator: np.random.Generator
) -> Integers:
    """Share each ``totals[c]`` out in proportion to ``weights[:, c]``, in whole numbers.

    Everybody gets the floor of the exact quota; what is left goes to the largest remainders, ties drawn
    at random. A weight of zero gets nothing. A column whose weights are all zero gets nothing either.
    """
    sums = weights.sum(axis=0)
    quotas = weights * (totals / np.where(sums > 0, sums, 1))  # [n, C]
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    left = np.where(sums > 0, totals, 0) - counts.sum(axis=0)
    remainders = np.round(quotas - counts, 9) + 1e-9 * generator.random(weights.shape)
    order = np.argsort(np.where(weights > 0, remainders, -1.0).T, axis=1)  # [C, n], ascending
    extra = np.zeros(order.shape, dtype=np.bool_)
    np.put_along_axis(extra, order, np.arange(len(weights)) >= len(weights) - left[:, None], axis=1)
    return counts + extra.T


def shuffled_rank(groups: Integers, generator: np.random.Generator) -> Integers:
    """Return for each element its position in a random order of its own group."""
    order = np.lexsort((generator.random(len(groups)), groups))
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(groups) else ordered
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
    return rank


def at_most(
    indices: Integers, groups: Integers, most: int | Integers, generator: np.random.Generator
) -> Integers:
    """Choose at most ``most`` (or ``most[group]``) of the indices of each group, at random."""
    allowed = most if isinstance(most, int) else most[groups]
    return indices[shuffled_rank(groups, generator) < allowed]


def stratified(groups: Integers, share: float, generator: np.random.Generator) -> Integers:
    """Choose about ``share`` of all positions, of each group in proportion, never the whole of a group."""
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    total = np.array([round(share * len(groups))])
    chosen = largest_remainder(sizes[:, None], total, generator)[:, 0]
    chosen = np.minimum(chosen, sizes - 1)
    return np.flatnonzero(shuffled_rank(group, generator) < chosen[group])


def spread(groups: Integers, kinds: Integers, share: float, generator: np.random.Generator) -> Integers:
    """Choose about ``share`` of each group's positions, spread over its kinds, never all of one kind.

    What is chosen of a group is therefore of kinds that are left in it too.
    """
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    wanted = largest_remainder(sizes[:, None], np.array([round(share * len(groups))]), generator)[:, 0]
    _, kind = np.unique(kinds, return_inverse=True)
    _, cell, cell_sizes = np.unique(group * (len(kind) + 1) + kind, return_inverse=True, return_counts=True)
    rank = shuffled_rank(cell, generator)
    turn = (rank - generator.random(len(cell_sizes))[cell]) / cell_sizes[cell]
    order = np.lexsort((turn, rank == 0, group))  # the first of each kind comes last: it stays
    starts = np.r_[0, np.cumsum(sizes)[:-1]]
    place = np.empty(len(groups), dtype=np.int64)
    place[order] = np.arange(len(groups)) - starts[group[order]]
    return np.flatnonzero((place < wanted[group]) & (rank > 0))


def deal(groups: Integers, counts: Integers, generator: np.random.Generator) -> tuple[Integers, ...]:
    """Deal positions to owners at random so that owner k gets ``counts[k, c]`` of the group c.

    The counts of each group must add up to its size; returns one sorted array of positions per owner.
    """
    owners, number = counts.shape
    owner_in_order = np.repeat(np.tile(np.arange(owners), number), counts.T.ravel())
    position_in_order = np.lexsort((generator.random(len(groups)), groups))
    owner = np.empty(len(groups), dtype=np.int64)
    owner[position_in_order] = owner_in_order
    return by_owner(owner, owners)


def by_owner(owner: Integers, owners: int) -> tuple[Integers, ...]:
    """Return the sorted positions of each owner 0 ... owners - 1; positions of ``NOBODY`` are left out."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(owners + 1))
    return tuple(order[start:end] for start, end in pairwise(bounds.tolist()))


def in_blocks(rows: Integers, width: int) -> list[Integers]:
    """Split rows so that a table of so many columns is no larger than ``BLOCK`` for any part of them."""
    most = max(1, BLOCK // width)
    return np.split(rows, range(most, len(rows), most))


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
        if not available.any():
            raise PartitionError(
                f"There is no {kind} image{place}. Give more: without a test split, a share of each class is "
                "tested on (data.test_share), but never its last image."
            )
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
