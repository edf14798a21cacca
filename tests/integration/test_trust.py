"""Protected runs from configuration to summary."""

from __future__ import annotations

import pytest
from support import SMALL

from fedcue.config import load
from fedcue.federate.run import run


@pytest.mark.parametrize("where", ["central", "local"])
def test_a_private_run_says_what_it_spent(tmp_path, where):
    pytest.importorskip("dp_accounting")
    config = load("default", [*SMALL, "privacy=dp", f"privacy.where={where}", "privacy.max_epsilon=6"])
    result = run(config, tmp_path / "run")
    privacy = result.summary["privacy"]
    epsilons = [record["epsilon"] for record in result.rounds]
    assert epsilons == sorted(epsilons)
    assert privacy["epsilon"] == epsilons[-1] <= 6
    assert privacy["where"] == where
    assert [record["train_loss"] for record in result.rounds] == [None, None]


def test_paper_noise_and_robust_rules_run(tmp_path):
    paper = run(load("default", [*SMALL, "privacy=paper"]), tmp_path / "paper")
    assert "not differential privacy" in paper.summary["privacy"]["label"]
    settings = ["clients_per_round=5", "heldout=0", "aggregate=median", "aggregate.norm_bound=median"]
    assert run(load("default", [*SMALL, *settings]), tmp_path / "median").mean_accuracy > 0
