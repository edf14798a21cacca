"""Gaussian noise on a grid: as much as was asked for, and nothing in its last bits."""

from __future__ import annotations

import math
import re
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, chi2, norm
from torch import Tensor

pytest.importorskip("cryptography")

from support.noise import add_gaussian, gaussian

from fedcue.errors import FedcueError
from fedcue.privacy import noise
from fedcue.privacy.discrete import CHUNK, LARGEST_SCALE, discrete_gaussian
from fedcue.privacy.noise import MARGIN, STEPS, grid, most_noise, snap
from fedcue.privacy.stream import NoiseStream

DEVIATIONS = st.floats(1e-200, 1e200)


def stream(*names: str | int) -> NoiseStream:
    return NoiseStream.simulated(0, "test", *names)


@given(DEVIATIONS)
def test_the_grid_is_a_power_of_two_with_enough_steps(deviation):
    assert math.frexp(grid(deviation))[0] == 0.5
    assert STEPS <= deviation / grid(deviation) < 2 * STEPS


@given(DEVIATIONS)
def test_the_noise_is_never_less_than_asked_for_and_hardly_more(deviation):
    drawn = noise._deviation_in_steps(deviation) * grid(deviation)
    assert 1 + 1 / MARGIN <= drawn / deviation <= 1 + 1.001 / MARGIN


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), st.floats(1e-3, 1e3))
def test_snapping_goes_to_the_grid_towards_zero_by_less_than_a_step(numbers, deviation):
    values, width = torch.tensor(numbers, dtype=torch.float64), grid(deviation)
    snapped = snap(values, width)
    assert torch.equal(snapped, (snapped / width).round() * width)
    assert (snapped.abs() <= values.abs()).all()
    assert ((snapped - values).abs() < width).all()
    assert torch.equal(snap(snapped, width), snapped)


@given(st.integers(0, 2**32), st.integers(1, 200), st.floats(1e-3, 1e3))
def test_snapping_moves_neighbours_apart_by_less_than_a_step_in_each_value(seed, count, deviation):
    generator, width = torch.Generator().manual_seed(seed), grid(deviation)
    values = torch.randn(count, generator=generator, dtype=torch.float64)
    others = values + 3 * width * torch.randn(count, generator=generator, dtype=torch.float64)
    moved = torch.dist(snap(values, width), snap(others, width))
    assert moved < torch.dist(values, others) + math.sqrt(count) * width * (1 + 1e-12)


@pytest.mark.parametrize("count", [1, 1000, 2**20, 2**24])
def test_the_margin_pays_for_snapping(count):
    sensitivity, multiplier = 1.0, most_noise(count)
    deviation = multiplier * sensitivity
    moved = sensitivity * (1 + 0.5 / MARGIN) + math.sqrt(count) * grid(deviation)
    assert noise._deviation_in_steps(deviation) * grid(deviation) / moved >= multiplier
    assert multiplier >= 128, "more than any sensible budget asks for"


def test_sums_of_contributions_in_steps_are_exact():
    parts = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = torch.zeros(3, dtype=torch.int64)
    for part in parts:
        total = noise.add_up(total, noise.in_steps(part, 2.0), 2.0)
    exact = [sum(int(step) for step in column) for column in (snap(parts, grid(2.0)) / grid(2.0)).T]
    assert total.tolist() == exact


def test_a_sum_that_64_bits_do_not_hold_is_refused():
    half = torch.tensor([2**61], dtype=torch.int64)
    with pytest.raises(FedcueError, match="Give a larger noise"):
        noise.add_up(half, half, 1.0)


def test_what_may_come_out_does_not_depend_on_what_went_in():
    values = torch.tensor([1 / 3, -1e-30, 0.1, 12345.678], dtype=torch.float64)
    release = add_gaussian(values.expand(1000, 4), 1.0, stream("support"))
    steps = release / grid(1.0)
    assert torch.equal(steps, steps.round())
    assert not (torch.signbit(release) & (release == 0)).any()


def test_noise_is_added_to_the_snapped_values():
    values = torch.tensor([[1.5, -2.25], [1 / 3, 0.0]])
    release, drawn = add_gaussian(values, 0.5, stream("same")), gaussian((2, 2), 0.5, stream("same"))
    assert release.dtype == drawn.dtype == torch.float64
    assert torch.equal(release - drawn, snap(values, grid(0.5)))


def test_noise_is_a_whole_number_of_steps_with_its_own_sign():
    steps = discrete_gaussian(5, noise._deviation_in_steps(3.0), stream("sign"))
    assert (gaussian((5,), 3.0, stream("sign")) / grid(3.0)).tolist() == steps.tolist()


def test_any_shape_is_filled():
    for shape in ((), (0,), (3,), (2, 0, 4), (2, 3, 4)):
        assert gaussian(shape, 1.0, stream("shape")).shape == shape
    assert add_gaussian(torch.ones(3, 4).T, 1.0, stream("turned")).shape == (4, 3)


# As much noise as was asked for, and a test that would notice half of it


def has_deviation(samples: Tensor, deviation: float) -> bool:
    """Say whether the sum of squares is what Gaussian noise of this deviation has in 999 of 1000 cases."""
    squares = float((samples / deviation).square().sum())
    low, high = chi2.ppf([0.0005, 0.9995], samples.numel())
    return low <= squares <= high


def epsilon_seen(near: Tensor, far: Tensor, deviation: float, delta: float) -> float:
    """Return the largest lower bound on epsilon that thresholds show, each certain to 1 in 10,000."""
    bounds = [0.0]
    for threshold in torch.linspace(0.5, 4, 8):
        hits = int((far > threshold * deviation).sum())
        misses = int((near > threshold * deviation).sum())
        least = float(beta.ppf(1e-4, hits, len(far) - hits + 1)) if hits else 0.0
        most = float(beta.ppf(1 - 1e-4, misses + 1, len(near) - misses))
        if least > delta:
            bounds.append(math.log((least - delta) / most))
    return max(bounds)


def halved(count: int, deviation: int, stream: NoiseStream):
    return discrete_gaussian(count, deviation // 2, stream)


@pytest.mark.parametrize("deviation", [1e-6, 0.37, 5.0, 1e9])
def test_the_deviation_is_the_one_asked_for(deviation, monkeypatch):
    assert has_deviation(gaussian((20_000,), deviation, stream("deviation")), deviation)
    monkeypatch.setattr(noise, "discrete_gaussian", halved)
    assert not has_deviation(gaussian((20_000,), deviation, stream("deviation")), deviation)


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """Return the delta of the continuous Gaussian mechanism (Balle and Wang, 2018)."""
    half, shift = 1 / (2 * multiplier), epsilon * multiplier
    return float(norm.cdf(half - shift) - math.exp(epsilon) * norm.cdf(-half - shift))


def test_neighbours_are_told_apart_no_better_than_epsilon_allows(monkeypatch):
    deviation, epsilon, count = 3.7304, 1.0, 200_000
    delta = gaussian_delta(deviation, epsilon)
    assert delta == pytest.approx(1e-5, rel=0.01)

    def attack() -> float:
        near = add_gaussian(torch.zeros(count), deviation, stream("near"))
        far = add_gaussian(torch.ones(count), deviation, stream("far"))
        return epsilon_seen(near, far, deviation, delta)

    assert 0.3 < attack() <= epsilon
    monkeypatch.setattr(noise, "discrete_gaussian", halved)
    assert attack() > epsilon, "half the noise is noticed"


# What cannot be drawn


@pytest.mark.parametrize("deviation", [2.0**-900, 1.0, 1e9, 2.0**900])
def test_every_deviation_between_1e_minus_270_and_1e270_has_a_grid(deviation):
    steps = deviation / grid(deviation)
    assert STEPS <= steps < 2 * STEPS


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.nan, math.inf, 1e-300, 2.0**-901, 2.0**901])
def test_deviations_without_a_grid_are_refused(deviation):
    with pytest.raises(FedcueError, match=re.escape(f"deviation {deviation} cannot be drawn")):
        gaussian((1,), deviation, stream())


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e8])
def test_values_that_the_grid_does_not_reach_are_refused(value):
    with pytest.raises(FedcueError, match="Give a larger noise"):
        add_gaussian(torch.tensor([0.0, value]), 1.0, stream())


def test_large_values_keep_their_noise():
    release = add_gaussian(torch.full((20_000,), 1e6), 1.0, stream("large"))
    assert has_deviation(release - 1e6, 1.0)


def test_speed_is_shown(capsys):
    start = time.process_time()
    gaussian((200_000,), 1.0, stream("speed"))
    seconds = time.process_time() - start
    with capsys.disabled():
        print(f"\nnoise: {200_000 / seconds:,.0f} values per second")


def test_grid_and_margin_stay_what_they_are():
    """Another number gives other noise for the same seed."""
    assert (STEPS, MARGIN, noise._MOST_STEPS, CHUNK) == (2**40, 2**20, 2**62, 2**14)
    assert LARGEST_SCALE == 2**48


def test_the_deviation_in_steps_is_rounded_up_with_its_margin():
    assert noise._deviation_in_steps(1.0) == STEPS + STEPS // MARGIN + 1
    assert noise._deviation_in_steps(1 + 2.0**-50) == STEPS + 1 + STEPS // MARGIN + 1


@pytest.mark.parametrize(("values", "most"), [(0, 2**19), (1, 2**19), (4, 2**18)])
def test_the_largest_noise_falls_with_the_root_of_the_number_of_values(values, most):
    assert most_noise(values) == most


def test_a_value_that_is_too_large_is_named_with_what_the_grid_reaches():
    told = r"value of size 1e\+08 gets noise on a grid of 9\.09495e-13, which reaches up to 4\.1943e\+06"
    with pytest.raises(FedcueError, match=told):
        add_gaussian(torch.tensor([1.0, -1e8]), 1.0, stream())
