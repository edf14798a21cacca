"""Exact and seeded ways to choose and share out things; plain numpy, nothing about images."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


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
    """Return the sorted positions of each owner 0 ... owners - 1; positions owned by -1 are left out."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(owners + 1))
    return tuple(order[start:end] for start, end in pairwise(bounds.tolist()))
