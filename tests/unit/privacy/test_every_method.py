"""Every method of the registry under ``privacy=dp``: a stated sensitivity for all it sends, or a refusal."""

from __future__ import annotations

import math

import pytest
import torch
from support.tables import roster_with

from fedcue.errors import ConfigError
from fedcue.privacy.accounting import Ledger
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.registry import METHODS

pytest.importorskip("dp_accounting")

REFUSED = {
    ("local", "any"): "nothing leaves a client of local",
    ("central", "any"): "privacy=dp.* has no meaning",
    ("sgpt", "any"): "sgpt: it uploads counts, of which no sensitivity is declared",
    ("fedcof", "central"): "fedcof needs every client's centroids, holds. Give privacy.where=local",
    ("fedcof", "distributed"): "fedcof needs every client's own centroids, holds",
    ("pfedpg", "central"): "pfedpg needs every client's .*prompt_change.*. Give privacy.where=local",
    ("pfedpg", "distributed"): "pfedpg needs every client's own .*prompt_change",
}
EVERY = [
    (method, unit, where)
    for method in METHODS.names()
    for unit in ("image", "client")
    for where in ("central", "local", "distributed")
]


def settings(method: str, unit: str, where: str) -> list[str]:
    rule = "secure" if where == "distributed" else "mean"
    ways = [f"privacy.where={where}", f"privacy.unit={unit}", f"aggregate={rule}", "privacy.max_epsilon=2"]
    return ["privacy=dp", f"method={method}", "clients_per_round=10", *ways]


@pytest.mark.parametrize(("method", "unit", "where"), EVERY, ids=["-".join(way) for way in EVERY])
def test_what_a_method_sends_has_a_sensitivity_or_is_refused_by_name(method, unit, where):
    reason = REFUSED.get((method, "any")) or REFUSED.get((method, where))
    if reason:
        with pytest.raises(ConfigError, match=reason):
            roster_with(*settings(method, unit, where))
        return
    roster = roster_with(*settings(method, unit, where))
    privacy, table = roster.protection.privacy, roster.table
    assert isinstance(privacy, DifferentialPrivacy)
    for part in ("replied", "returned"):
        sent = {spec.name: torch.empty(spec.shape) for spec in table.uploads if getattr(spec, part)}
        moves = privacy.moves(sent, table)
        assert moves.keys() == sent.keys()
        assert all(0 < move < math.inf for move in moves.values())


@pytest.mark.parametrize("unit", ["image", "client"])
@pytest.mark.parametrize("method", ["ncm", "fed3r", "cue", "pep", "head"])
def test_the_summary_says_what_is_promised(method, unit):
    planned = roster_with(*settings(method, unit, "central")).budget.planned()
    told = planned.summary()["privacy"]
    assert told["unit"].startswith({"image": "one training record", "client": "one client"}[unit])
    assert (told["neighbours"], told["delta"]) == ("replace-one", 1e-5)
    assert 1.999 < told["epsilon"] <= 2
    assert told["epsilon"] == told["epsilon_by_exact_composition"] < told["epsilon_by_renyi"] < 1.2 * 2
    assert "exact composition" in told["accountant"]
    share = (told["epsilon_before_rounds"] > 0, told["epsilon_before_rounds"] == told["epsilon"])
    assert share == {"head": (False, False), "ncm": (True, True), "fed3r": (True, True)}.get(
        method, (True, False)
    )


def test_a_secret_sample_is_counted_by_renyi_and_the_summary_says_what_a_known_one_would_cost():
    planned = roster_with(*settings("fedvpt", "image", "central"), "privacy.sample=secret").budget.planned()
    told = planned.summary()["privacy"]
    assert told["accountant"].endswith("Renyi")
    assert told["epsilon"] == told["epsilon_by_renyi"]
    known = Ledger(releases=planned.ledger.releases).epsilon(told["noise_multiplier"], 1e-5)
    assert told["epsilon_by_exact_composition"] == known


@pytest.mark.parametrize("where", ["local", "central"])
def test_class_sums_of_random_parts_of_a_class_are_refused(where):
    """Another class of one image deals the other images of both classes out anew: no bound holds."""
    with pytest.raises(ConfigError, match="fedcof"):
        roster_with(*settings("fedcof", "image", where), "method.parts=2")
