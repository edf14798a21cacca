"""Samples that have exactly the probabilities of their formulas."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

pytest.importorskip("cryptography")

from fedcue.privacy import discrete
from fedcue.privacy.discrete import bernoulli_exp, discrete_gaussian, uniform_below
from fedcue.privacy.stream import NoiseStream

BIG = 2**40 + 123_456_789


def stream(*names: str | int) -> NoiseStream:
    return NoiseStream.simulated(0, "test", *names)


class Branch(Exception):  # noqa: N818
    """A choice that the enumeration has to take both ways."""


def probability_of_truth(draw, depth: int) -> tuple[Fraction, Fraction]:
    """Return bounds of the exact probability that ``draw`` gives truth, over all its choices.

    ``draw`` is run with ``uniform_below`` replaced: a draw of ``bound`` values tries all of them.
    Rows of choices longer than ``depth`` are left open and make up the distance of the bounds.
    """
    true, open_ = Fraction(0), Fraction(0)
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        fixed = waiting.pop()
        weight = Fraction(1)
        choices = iter(fixed)

        def below(bound: int, count: int, stream: object) -> np.ndarray:
            nonlocal weight
            assert count == 1
            try:
                value = next(choices)  # noqa: B023
            except StopIteration:
                raise Branch(bound) from None
            weight /= bound
            return np.array([value], np.uint64)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(discrete, "uniform_below", below)
            try:
                true += weight if draw() else 0
            except Branch as branch:
                if len(fixed) == depth:
                    open_ += weight
                else:
                    waiting += [(*fixed, value) for value in range(branch.args[0])]
    return true, true + open_


def exp_bounds(exponent: Fraction) -> tuple[Fraction, Fraction]:
    """Return bounds of ``exp(-exponent)`` for an exponent of at most 1, from its alternating series."""
    terms = [(-exponent) ** n / math.factorial(n) for n in range(31)]
    return sum(terms[:30]), sum(terms)


@pytest.mark.parametrize(("p", "q"), [(0, 1), (1, 1), (1, 2), (1, 3), (2, 3), (3, 4)])
def test_bernoulli_exp_is_exact(p, q):
    numerators = np.array([p], np.uint64)
    low, high = probability_of_truth(lambda: bernoulli_exp(numerators, q, None)[0], depth=6)
    least, most = exp_bounds(Fraction(p, q))
    assert low <= most
    assert least <= high
    assert high - low <= Fraction(p, q) ** 6 / math.factorial(6)


@pytest.mark.parametrize(("p", "q"), [(0, 1), (1, 2), (1, 3), (2, 3)])
def test_bernoulli_of_half_a_square_is_exact(p, q):
    numerators = np.array([p], np.uint64)
    draw = lambda: discrete._bernoulli_exp_half_square(numerators, q, None)[0]  # noqa: E731
    low, high = probability_of_truth(draw, depth=6)
    least, most = exp_bounds(Fraction(p, q) ** 2 / 2)
    assert low <= most
    assert least <= high
    assert high - low <= (Fraction(p, q) ** 2 / 2) ** 3 / math.factorial(3)


class Words:
    """A stream that gives the words it was told."""

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def uniform_words(self, count: int) -> np.ndarray:
        taken, self.words = self.words[:count], self.words[count:]
        return np.array(taken, np.uint64)


def test_uniform_draws_again_where_remainders_would_not_be_even():
    # 2^64 = 3 * 6148914691236517205 + 1: one word is too many
    assert uniform_below(3, 3, Words(2**64 - 1, 2**64 - 2, 4, 2**64 - 1, 5)).tolist() == [2, 2, 1]
    assert uniform_below(2**41, 1, Words(2**64 - 1)).tolist() == [2**41 - 1]


def test_uniform_reaches_all_values_alike():
    counts = np.bincount(uniform_below(10, 100_000, stream("uniform")).astype(np.int64), minlength=10)
    assert len(counts) == 10
    assert chisquare(counts).pvalue > 1e-3


def exact_weights(log_weight, reach: int) -> dict[int, float]:
    weights = {y: math.exp(log_weight(y)) for y in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    return {y: weight / total for y, weight in weights.items()}


def fit(samples: np.ndarray, weights: dict[int, float]) -> float:
    """Return the p-value of a chi-square test; values expected less than ten times are one bin."""
    expected = {y: len(samples) * weight for y, weight in weights.items()}
    common = [y for y in expected if expected[y] >= 10]
    observed = [int((samples == y).sum()) for y in common]
    counts = [*observed, len(samples) - sum(observed)]
    hoped = [*(expected[y] for y in common), len(samples) - math.fsum(expected[y] for y in common)]
    return chisquare(counts, hoped, sum_check=False).pvalue


@pytest.mark.parametrize("deviation", [1, 2, 3, 7, 20])
def test_discrete_gaussian_has_the_probabilities_of_its_formula(deviation):
    weights = exact_weights(lambda y: -(y**2) / (2 * deviation**2), 40 * deviation)
    samples = discrete_gaussian(200_000, deviation, stream("gaussian", deviation))
    assert fit(samples, weights) > 1e-3
    other = exact_weights(lambda y: -(y**2) / (2 * (1.02 * deviation) ** 2), 40 * deviation)
    assert fit(samples, other) < 1e-3, "the test would notice a deviation that is wrong by two per cent"


def test_a_fine_gaussian_has_the_shares_and_moments_of_a_normal_one():
    samples = discrete_gaussian(400_000, BIG, stream("fine")) / BIG
    moments = [float((samples**power).mean()) for power in range(1, 7)]
    for found, hoped, spread in zip(moments, (0, 1, 0, 3, 0, 15), (1, 2, 15, 96, 945, 10_170), strict=True):
        assert abs(found - hoped) < 4 * math.sqrt(spread / len(samples))
    edges = np.linspace(-4, 4, 81)
    shares = np.diff([0, *(0.5 * math.erfc(-edge / math.sqrt(2)) for edge in edges), 1])
    counts = np.histogram(samples, [-np.inf, *edges, np.inf])[0]
    assert chisquare(counts, shares * len(samples)).pvalue > 1e-3


def test_low_bits_and_neighbouring_samples_are_independent_of_the_rest():
    samples = discrete_gaussian(200_000, BIG, stream("bits"))
    for bit in range(16):
        ones = int(((samples >> bit) & 1).sum())
        assert abs(ones - 100_000) < 4 * math.sqrt(50_000)
    scaled = samples / BIG
    for apart in (1, 2, 3):
        assert abs(float((scaled[apart:] * scaled[:-apart]).mean())) < 4 / math.sqrt(len(samples))


def test_samples_repeat_and_have_the_length_asked_for():
    for count in (0, 1, 7, discrete.CHUNK + 1):
        first, again = (discrete_gaussian(count, 1000, stream("count", count)) for _ in range(2))
        assert len(first) == count
        assert first.dtype == np.int64
        assert np.array_equal(first, again)


def test_samples_stay_what_they_are():
    """Another order of draws would change the results of every private simulation."""
    assert discrete_gaussian(6, BIG, stream("pinned")).tolist() == [
        -2_277_321_775_356,
        746_083_958_592,
        -1_621_303_133_144,
        -179_553_759_599,
        311_840_749_765,
        -3_009_276_179_065,
    ]


@pytest.mark.parametrize("scale", [0, -1, 2**49])
def test_scales_out_of_range_are_refused(scale):
    with pytest.raises(ValueError, match=f"{scale} steps. Give 1 to"):
        discrete_gaussian(1, scale, stream())


def test_the_largest_scale_works():
    samples = discrete_gaussian(2000, discrete.LARGEST_SCALE, stream("largest")) / discrete.LARGEST_SCALE
    assert samples.std() == pytest.approx(1, abs=0.1)


# What the accounting of the continuous Gaussian says of the discrete one


@pytest.mark.parametrize("deviation", [1, 2, 5])
@pytest.mark.parametrize("moved", [1, 3])
def test_renyi_divergences_are_at_most_those_of_the_continuous_gaussian(deviation, moved):
    reach = range(-60 * deviation, 60 * deviation + 1)
    total = math.fsum(math.exp(-(y**2) / (2 * deviation**2)) for y in reach)
    for order in (1.5, 2, 2.5, 3, 8):
        exponents = (-(order * (y - moved) ** 2 + (1 - order) * y**2) / (2 * deviation**2) for y in reach)
        found = math.log(math.fsum(map(math.exp, exponents)) / total) / (order - 1)
        continuous = order * moved**2 / (2 * deviation**2)
        assert found <= continuous * (1 + 1e-9)
        if order == int(order):
            assert found == pytest.approx(continuous, rel=1e-9)


@pytest.mark.parametrize("deviation", [1, 2, 4, 16, 64])
def test_the_distance_to_a_rounded_gaussian_is_bounded(deviation):
    discrete_weights = exact_weights(lambda y: -(y**2) / (2 * deviation**2), 40 * deviation)
    root = math.sqrt(2) * deviation
    rounded = {y: (math.erf((y + 0.5) / root) - math.erf((y - 0.5) / root)) / 2 for y in discrete_weights}
    distance = math.fsum(max(0.0, weight - rounded[y]) for y, weight in discrete_weights.items())
    assert 0 < distance <= 1 / (24 * deviation**2)


def test_more_samples_than_are_tried_at_once_stay_what_they_are():
    samples = discrete_gaussian(discrete.CHUNK + 5, 1000, stream("many"))
    assert hashlib.sha256(samples.tobytes()).hexdigest()[:12] == "b1fb36f87e25"
