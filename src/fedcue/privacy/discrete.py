"""Exact samples of the discrete Gaussian and the discrete Laplace distribution, by integers alone.

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
    _check_scale(deviation)

    def magnitudes(tried: int) -> Integers:
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

    return _with_signs(count, magnitudes, stream)


def discrete_laplace(count: int, scale: int, stream: NoiseStream) -> Integers:
    """Draw integers ``y`` with probability proportional to ``exp(-|y| / scale)``.

    Write ``|y| = k * scale + j``. Then ``k`` counts successes of probability ``exp(-1)`` before the
    first failure, and a uniform ``j`` is kept with probability ``exp(-j / scale)``.
    """
    _check_scale(scale)

    def magnitudes(tried: int) -> Integers:
        part = uniform_below(scale, tried, stream)
        part = part[bernoulli_exp(part, scale, stream)]
        whole = _successes(len(part), lambda asked: bernoulli_exp(np.ones(asked, np.uint64), 1, stream))
        return whole * scale + part.astype(np.int64)

    return _with_signs(count, magnitudes, stream)


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
    whole = _successes(count, lambda asked: _bernoulli_exp_half(asked, stream))
    needed = whole * (whole - 1)
    kept = np.ones(count, np.bool_)
    asked, trial = np.flatnonzero(needed), 0
    while asked.size:
        kept[asked] = _bernoulli_exp_half(asked.size, stream)
        trial += 1
        asked = asked[kept[asked] & (needed[asked] > trial)]
    return whole[kept]


def _successes(count: int, succeed: Callable[[int], Flags]) -> Integers:
    """Count successes before the first failure."""
    successes = np.zeros(count, np.int64)
    asked = np.arange(count)
    while asked.size:
        asked = asked[succeed(asked.size)]
        successes[asked] += 1
    return successes


def _with_signs(count: int, magnitudes: Callable[[int], Integers], stream: NoiseStream) -> Integers:
    """Draw magnitudes until there are ``count`` with a sign; zero counts once, so -0 is drawn again."""
    drawn, filled = np.empty(count, np.int64), 0
    while filled < count:
        found = magnitudes(min(CHUNK, 2 * (count - filled) + 16))
        negative = uniform_below(2, len(found), stream) == 1
        found = np.where(negative, -found, found)[(found != 0) | ~negative][: count - filled]
        drawn[filled : filled + len(found)] = found
        filled += len(found)
    return drawn


def _check_scale(scale: int) -> None:
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(f"The scale is {scale} steps. Give 1 to 2^48.")
