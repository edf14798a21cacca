"""Exact samples of the discrete Gaussian distribution, by integers alone.

No floating-point number takes part. So every probability is what its formula says, and the same
words of a stream give the same samples on every machine. ``docs/decisions/0010-noise.md`` names the
papers that the algorithms are from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedcue.privacy.stream import NoiseStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Flags = NDArray[np.bool_]

LARGEST_SCALE = 2**48
"""Scale at most, in steps: its product with the number of a trial fits into 64 bits."""

CHUNK = 2**14
"""Candidates tried together. They fit into a cache; another number means other simulated samples."""


def discrete_gaussian(count: int, deviation: int, stream: NoiseStream) -> Integers:
    """Draw integers ``y`` with probability proportional to ``exp(-y^2 / (2 deviation^2))``.

    Write ``|y| = k * deviation + j`` and ``x = j / deviation``. Then the weight is the product of
    ``exp(-k^2 / 2)``, by which ``k`` is drawn, and of ``exp(-x)^k`` and ``exp(-x^2 / 2)``, with which
    a uniform ``j`` is kept.
    """
    if not 1 <= deviation <= LARGEST_SCALE:
        raise ValueError(f"The scale is {deviation} steps. Give 1 to 2^48.")
    drawn, filled = np.empty(count, np.int64), 0
    while filled < count:
        found = _magnitudes(min(CHUNK, 2 * (count - filled) + 16), deviation, stream)
        negative = uniform_below(2, len(found), stream) == 1
        signed = np.where(negative, -found, found)[(found != 0) | ~negative]  # zero counts once
        signed = signed[: count - filled]
        drawn[filled : filled + len(signed)] = signed
        filled += len(signed)
    return drawn


def _magnitudes(tried: int, deviation: int, stream: NoiseStream) -> Integers:
    """Draw ``|y|``: at most as many as are tried."""
    whole = _whole_parts(tried, stream)
    part = uniform_below(deviation, len(whole), stream)
    kept = _bernoulli_exp_half_square(part, deviation, stream)
    asked = np.flatnonzero(kept & (whole > 0))
    trial = 1
    while asked.size:
        kept[asked] = bernoulli_exp(part[asked], deviation, stream)
        asked = asked[kept[asked] & (whole[asked] > trial)]
        trial += 1
    return whole[kept] * deviation + part[kept].astype(np.int64)


def bernoulli_exp(numerators: Words, denominator: int, stream: NoiseStream) -> Flags:
    """Draw truth with probability ``exp(-numerator / denominator)``, for ratios of at most 1."""

    def trial(asked: Integers, number: int) -> Flags:
        return uniform_below(denominator * number, len(asked), stream) < numerators[asked]

    return _first_failure_is_odd(len(numerators), trial)


def uniform_below(bound: int, count: int, stream: NoiseStream) -> Words:
    """Draw integers from 0 to ``bound - 1``, all with the same probability."""
    excess = 2**64 % bound
    words = stream.uniform_words(count)
    if excess:  # the last words are no whole set of remainders: draw these again
        limit = np.uint64(2**64 - excess)
        while (again := np.flatnonzero(words >= limit)).size:
            words = words.copy()
            words[again] = stream.uniform_words(again.size)
    return words % np.uint64(bound)


def _bernoulli_exp_half_square(numerators: Words, denominator: int, stream: NoiseStream) -> Flags:
    """Draw truth with probability ``exp(-x^2 / 2)`` for ``x = numerator / denominator``."""

    def trial(asked: Integers, number: int) -> Flags:
        some = numerators[asked]
        once = uniform_below(denominator, len(asked), stream) < some
        return once & (uniform_below(2 * denominator * number, len(asked), stream) < some)

    return _first_failure_is_odd(len(numerators), trial)


def _bernoulli_exp_half(count: int, stream: NoiseStream) -> Flags:
    """Draw truth with probability ``exp(-1 / 2)``."""
    return bernoulli_exp(np.ones(count, np.uint64), 2, stream)


def _first_failure_is_odd(count: int, trial: Callable[[Integers, int], Flags]) -> Flags:
    """Say whether the first failure in a row of trials, counted from 1, has an odd number.

    If trial ``n`` succeeds with probability ``g / n``, the answer is yes with probability
    ``1 - g + g^2/2 - g^3/6 + ... = exp(-g)``.
    """
    odd = np.ones(count, np.bool_)
    asked, number = np.arange(count), 1
    while asked.size:
        asked = asked[trial(asked, number)]
        number += 1
        odd[asked] = number % 2 == 1
    return odd


def _whole_parts(count: int, stream: NoiseStream) -> Integers:
    """Draw integers ``k >= 0`` with probability proportional to ``exp(-k^2 / 2)``: ``count`` at most.

    A candidate has probability proportional to ``exp(-k / 2)`` and must succeed ``k (k - 1)`` times more.
    """
    whole = _successes(count, stream)
    needed = whole * (whole - 1)
    kept = np.ones(count, np.bool_)
    asked, trial = np.flatnonzero(needed), 0
    while asked.size:
        kept[asked] = _bernoulli_exp_half(asked.size, stream)
        trial += 1
        asked = asked[kept[asked] & (needed[asked] > trial)]
    return whole[kept]


def _successes(count: int, stream: NoiseStream) -> Integers:
    """Count successes of probability ``exp(-1 / 2)`` before the first failure."""
    successes = np.zeros(count, np.int64)
    asked = np.arange(count)
    while asked.size:
        asked = asked[_bernoulli_exp_half(asked.size, stream)]
        successes[asked] += 1
    return successes
