"""The budget: against formulas written down by hand, and never exceeded."""

from __future__ import annotations

import importlib
import math
from statistics import NormalDist

import pytest

from fedcue.errors import ConfigError
from fedcue.privacy import accounting
from fedcue.privacy.accounting import ORDERS, Ledger, calibrate

pytest.importorskip("dp_accounting")
DELTA = 1e-5


def ledger(releases: int) -> Ledger:
    spent = Ledger()
    spent.add([0], releases)
    return spent


def exact_epsilon(noise: float) -> float:
    """Return the epsilon of one Gaussian release of sensitivity 1, by its exact delta (Balle and Wang)."""
    cdf = NormalDist().cdf

    def delta(epsilon: float) -> float:
        half, shift = 1 / (2 * noise), epsilon * noise
        return cdf(half - shift) - math.exp(epsilon) * cdf(-half - shift)

    low, high = 0.0, 500.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
    return high


def renyi_epsilon(noise: float, releases: int) -> float:
    """Return the bound from the Renyi divergence ``a / 2 noise^2`` of each release, at the best order."""
    return min(
        releases * a / (2 * noise**2) + math.log1p(-1 / a) - (math.log(DELTA) + math.log(a)) / (a - 1)
        for a in ORDERS
    )


def test_orders_are_fine_where_epsilon_is_large_and_reach_to_64():
    assert (len(ORDERS), min(ORDERS), max(ORDERS)) == (99 + 54, 1.1, 64)
    assert sorted(ORDERS)[:3] == pytest.approx([1.1, 1.2, 1.3])


@pytest.mark.parametrize("noise", [0.8, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("releases", [1, 5, 40])
def test_gaussian_releases_match_the_formulas(noise, releases):
    ours = ledger(releases).epsilon(noise, DELTA)
    assert ours == pytest.approx(renyi_epsilon(noise, releases), rel=1e-9)
    exact = exact_epsilon(noise / math.sqrt(releases))
    assert exact <= ours <= 1.2 * exact


def test_a_known_value():
    assert ledger(1).epsilon(4.0, DELTA) == pytest.approx(1.0, abs=0.05)  # sigma 4: about epsilon 1


def test_the_client_with_most_releases_bounds_all():
    spent = Ledger()
    spent.add([0, 1, 2], 1)
    spent.add([0, 1], 2)
    spent.add([0, 2], 2)
    assert spent.most == 5
    assert spent.epsilon(2.0, DELTA) == ledger(5).epsilon(2.0, DELTA)


def test_nothing_released_costs_nothing():
    assert Ledger().epsilon(1.0, DELTA) == 0.0


def test_a_secret_sample_costs_less_unless_it_is_everyone():
    spent = {sample: Ledger(sample, 100, rounds=20) for sample in (None, 5, 50, 100)}
    for one in spent.values():
        one.releases[0] = 20
    costs = {sample: one.epsilon(2.0, DELTA) for sample, one in spent.items()}
    assert costs[5] < costs[50] < costs[100] == pytest.approx(costs[None])


@pytest.mark.parametrize("target", [0.5, 8.0])
def test_calibrated_noise_spends_the_budget_and_no_more(target):
    spent = ledger(7)
    noise = calibrate(spent.event, target, DELTA)
    assert 0.99 * target < spent.epsilon(noise, DELTA) <= target


def test_without_the_package_it_says_what_to_install(monkeypatch):
    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    accounting._epsilon.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'fedcue\[privacy\]'"):
        ledger(1).epsilon(1.0, DELTA)
