"""Protected runs from configuration to summary."""

from __future__ import annotations

from typing import Any

import pytest
from support import SMALL

from fedcue.config import load
from fedcue.errors import FedcueError, RunFolderError
from fedcue.federate.federation import Federation
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


def test_rounds_that_the_noise_was_not_settled_for_are_refused(tmp_path):
    pytest.importorskip("dp_accounting")
    private = [*SMALL, "privacy=dp", "method=fedvpt"]
    run(load("default", private), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"rounds=2, asked for rounds=9 \(the noise of privacy=dp"):
        run(load("default", [*private, "rounds=9"]), tmp_path / "run", resume=True)
    given = [*private, "privacy.noise=20"]
    run(load("default", given), tmp_path / "given")
    longer = run(load("default", [*given, "rounds=3"]), tmp_path / "given", resume=True)
    assert [record["round"] for record in longer.rounds] == [1, 2, 3]
    assert longer.summary["privacy"]["noise_multiplier"] == 20


class Troubled(Federation):
    """A federation in which one client fails at what it is told to fail at."""

    victim, step = 1, "warm up"

    def _visit(self, client: int, *rest: Any) -> Any:
        if client == self.victim and self.step == "warm up":
            raise ValueError("its disk is on fire")
        return super()._visit(client, *rest)

    def prepare_test(self, clients: Any, *rest: Any) -> Any:
        if self.victim in clients and self.step == "evaluate":
            raise ValueError("its disk is on fire")
        return super().prepare_test(clients, *rest)


@pytest.mark.parametrize("step", ["warm up", "evaluate"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_fails_outside_training_is_named_and_left_out(tmp_path, monkeypatch, step, workers):
    monkeypatch.setattr(Troubled, "step", step)
    monkeypatch.setattr("fedcue.federate.run.Federation", Troubled)
    result = run(load("default", [*SMALL, f"workers={workers}", "heldout=0"]), tmp_path / "run")
    failures = [failure for record in result.rounds for failure in record.get("failures", [])]
    expected = {"step": step, "client": 1, "reason": "ValueError: its disk is on fire"}
    assert expected in failures
    if step == "evaluate":
        lines = (tmp_path / "run" / "clients.csv").read_text().splitlines()
        assert [line.endswith(",") for line in lines[1:]] == [False, True, False, False, False]


def test_too_few_answers_before_round_0_end_the_run_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(Troubled, "_visit", lambda self, client, *rest: 1 / 0)
    monkeypatch.setattr("fedcue.federate.run.Federation", Troubled)
    with pytest.raises(FedcueError, match=r"0 clients answered before round 0.*ZeroDivisionError"):
        run(load("default", SMALL), tmp_path / "run")


def test_a_robust_rule_is_not_used_on_fewer_updates_than_it_needs(tmp_path, monkeypatch):
    settings = ["aggregate=median", "aggregate.attackers=1", "clients_per_round=3", "heldout=0"]
    config = load("default", [*SMALL, "method=head", *settings])
    monkeypatch.setattr("fedcue.federate.run.Federation", Troubled)
    result = run(config, tmp_path / "run")
    assert all(1 not in record["clients"] for record in result.rounds)
