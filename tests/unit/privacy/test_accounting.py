"""The budget: against formulas written down by hand, and never exceeded."""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace

import pytest
from scipy.stats import norm

from fedcue.errors import ConfigError
from fedcue.privacy import accounting
from fedcue.privacy.accounting import ORDERS, Ledger

pytest.importorskip("dp_accounting")
DELTA = 1e-5


def ledger(releases: int) -> Ledger:
    spent = Ledger()
    spent.add([0], releases)
    return spent


def exact_epsilon(noise: float) -> float:
    """Return the epsilon of one Gaussian release of sensitivity 1, by its exact delta (Balle and Wang)."""

    def delta(epsilon: float) -> float:
        half, shift = 1 / (2 * noise), epsilon * noise
        return norm.cdf(half - shift) - math.exp(epsilon + norm.logcdf(-half - shift))

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
    spent = ledger(releases)
    exact = exact_epsilon(noise / math.sqrt(releases))
    assert spent.epsilon(noise, DELTA) == pytest.approx(exact, rel=1e-6)
    assert spent.renyi(noise, DELTA) == pytest.approx(renyi_epsilon(noise, releases), rel=1e-9)
    assert exact <= spent.renyi(noise, DELTA) <= 1.2 * exact


def test_the_exact_curve_is_that_of_privacy_loss_distributions():
    dp = importlib.import_module("dp_accounting")
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE  # the noise is in units of replace-one already
    accountant = importlib.import_module("dp_accounting.pld").PLDAccountant(relation)
    accountant.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(6.0), 5))
    assert ledger(5).epsilon(6.0, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-4)


def test_the_accountant_is_named():
    assert ledger(1).accountant.endswith("exact composition of Gaussian releases")
    assert Ledger(5, 100).accountant.endswith("Renyi")


def test_a_known_value():
    assert ledger(1).epsilon(4.0, DELTA) == pytest.approx(0.93, abs=0.02)  # sigma 4: about epsilon 1


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
    assert costs[5] < costs[50] < costs[100] == pytest.approx(spent[None].renyi(2.0, DELTA))
    assert costs[None] < costs[100]


@pytest.mark.parametrize("target", [0.5, 8.0])
@pytest.mark.parametrize("sample", [None, 5])
def test_calibrated_noise_spends_the_budget_and_no_more(target, sample):
    spent = Ledger(sample, 100, rounds=7)
    spent.releases[0] = 7
    noise = spent.noise_for(target, DELTA)
    assert 0.99 * target < spent.epsilon(noise, DELTA) <= target


def test_without_the_package_it_says_what_to_install(monkeypatch):
    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    accounting._exact.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'fedcue\[privacy\]'"):
        ledger(1).epsilon(1.0, DELTA)


def test_a_ledger_counts_rounds_and_releases_of_all_clients_together():
    spent = Ledger()
    assert (spent.rounds, spent.total, spent.most) == (0, 0, 0)
    spent.add([0, 1], 1)
    spent.add([1, 2], 2)
    assert (spent.rounds, spent.total, spent.most) == (2, 6, 3)
    after = spent.after([0], 1)
    assert (after.rounds, after.total, spent.total) == (3, 7, 6)


def test_an_empty_ledger_knows_no_sample_and_costs_nothing_by_renyi_either():
    assert Ledger() == Ledger(None, 0, 0, {})
    assert Ledger().renyi(1.0, DELTA) == Ledger(5, 100).renyi(1.0, DELTA) == 0.0


def test_the_noise_for_a_budget_stays_what_it_is(monkeypatch):
    """Another search for it would change the noise of every private simulation."""
    spent = Ledger(releases={0: 7})
    assert spent.noise_for(0.5, DELTA) == pytest.approx(18.60446466470583, rel=1e-11)
    assert spent.noise_for(8.0, DELTA) == pytest.approx(1.5880568562975164, rel=1e-11)
    monkeypatch.setattr(accounting, "ORDERS", (4.0, 8.0, 16.0))
    secret = Ledger(5, 100, rounds=7, releases={0: 7})
    assert secret.noise_for(2.0, DELTA) == pytest.approx(1.1294961207619287, rel=1e-9)


def test_a_noise_that_was_found_too_small_is_raised_by_parts_in_a_million(monkeypatch):
    """Found 2.2 parts in a million below what one release of epsilon 1 needs."""
    spent, needed = ledger(1), ledger(1).noise_for(1.0, DELTA)
    short = needed * (1 - 2.2e-6)
    found = SimpleNamespace(get_sigma_gaussian=lambda epsilon, delta: short)
    right = accounting._accounting()
    monkeypatch.setattr(found, "get_epsilon_gaussian", right.get_epsilon_gaussian, raising=False)
    monkeypatch.setattr(accounting, "_accounting", lambda: found)
    noise = spent.noise_for(1.0, DELTA)
    assert noise == pytest.approx(short * (1 + 1e-6) ** 3, rel=1e-8)
    assert spent.exact(noise, DELTA) <= 1.0
    monkeypatch.setattr(accounting, "_exact", lambda noise, delta: 1.0)
    assert spent.noise_for(1.0, DELTA) == short * (1 + 1e-9), "just the budget is enough"
