"""Protected runs from configuration to summary."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support import SMALL

from fedcue.cli.run import print_result
from fedcue.clients.federation import load_federation
from fedcue.clients.host import Host
from fedcue.config.layers import load
from fedcue.errors import ClientError, ConfigError, FedcueError, RunFolderError
from fedcue.report.comparison import compare_runs
from fedcue.report.overview import failures
from fedcue.report.runs import find_runs
from fedcue.rounds.loop import run
from fedcue.types import ClientMemory, Download


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


def trouble(monkeypatch: pytest.MonkeyPatch, step: str, victim: int = 1) -> None:
    """Let one client fail at a step."""
    warm_up, prepare_test = Host.warm_up, Host.prepare_test

    def troubled_warm_up(self: Host, client: int) -> Any:
        if client == victim and step == "warm up":
            raise ClientError("its disk is on fire")
        return warm_up(self, client)

    def troubled_test(self: Host, clients: Any, *rest: Any) -> Any:
        if victim in clients and step == "evaluate":
            raise ClientError("its disk is on fire")
        return prepare_test(self, clients, *rest)

    monkeypatch.setattr(Host, "warm_up", troubled_warm_up)
    monkeypatch.setattr(Host, "prepare_test", troubled_test)


@pytest.mark.parametrize("step", ["warm up", "evaluate"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_fails_outside_training_is_named_and_left_out(tmp_path, monkeypatch, step, workers):
    trouble(monkeypatch, step)
    result = run(load("default", [*SMALL, f"workers={workers}", "heldout=0"]), tmp_path / "run")
    named = [failure for record in result.rounds for failure in record.get("failures", [])]
    assert {"step": step, "client": 1, "reason": "its disk is on fire"} in named
    if step == "evaluate":
        lines = (tmp_path / "run" / "clients.csv").read_text().splitlines()
        assert [line.endswith(",") for line in lines[1:]] == [False, True, False, False, False]


def test_clients_that_could_not_be_tested_are_named_in_the_summary(tmp_path, monkeypatch, capsys):
    trouble(monkeypatch, "evaluate")
    result = run(load("default", [*SMALL, "method=ncm", "heldout=0"]), tmp_path / "run")
    assert result.summary["untested"] == [{"client": 1, "reason": "its disk is on fire"}]
    print_result(Console(), result)
    assert "1 client could not be tested, left out of the numbers: 1" in capsys.readouterr().out
    comparison = compare_runs({("ncm", ""): [tmp_path / "run"]}, 0.8)
    comparison.write(tmp_path)
    assert "could not be tested and are left out: 1 of ncm." in (tmp_path / "compare.tex").read_text()
    assert comparison.note.endswith("Clients that could not be tested and are left out: 1 of ncm.")
    assert comparison.plain()["rows"][0]["untested"] == [1]
    shown = [failure.text for failure in failures(find_runs([tmp_path / "run"]))]
    assert shown == ["step evaluate, client 1, reason its disk is on fire"]


def test_a_run_of_which_no_training_client_can_be_tested_ends_in_words(tmp_path, monkeypatch):
    prepare_test = Host.prepare_test

    def only_heldout(self: Host, clients: Any, *rest: Any) -> Any:
        if not all(self.client(client).heldout for client in clients):
            raise ClientError("its disk is on fire")
        return prepare_test(self, clients, *rest)

    monkeypatch.setattr(Host, "prepare_test", only_heldout)
    with pytest.raises(
        FedcueError, match=r"No client that trains could be tested \(client .*disk is on fire"
    ):
        run(load("default", [*SMALL, "method=head", "heldout=1"]), tmp_path / "run")


def test_tests_have_a_time_limit_too(tmp_path):
    federation = load_federation(load("default", [*SMALL, "method=head", "client_timeout=1e-9"]))
    download = Download(0, 0, federation.roster.table.first(0))
    with pytest.raises(ClientError, match="took longer than client_timeout"):
        federation.host.test([0], download, ClientMemory(), final=True)


def test_noise_that_hides_every_class_ends_the_run_in_words(tmp_path):
    pytest.importorskip("dp_accounting")
    private = ["privacy=dp", "privacy.max_epsilon=0.2", "method=ncm"]
    with pytest.raises(FedcueError, match=r"No class is known.*privacy.max_epsilon"):
        run(load("default", [*SMALL, *private]), tmp_path / "run")


def test_a_private_run_whose_rounds_are_drawn_again_ends_within_its_budget(tmp_path, monkeypatch):
    """A round that fails is spent all the same; the run ends earlier, with its model and what was spent."""
    pytest.importorskip("dp_accounting")
    train = Host.train

    def failing_once(self: Host, download: Any, memory: Any) -> Any:
        if download.round == 0 and not (tmp_path / f"failed-{download.client}").exists():
            (tmp_path / f"failed-{download.client}").touch()
            raise ClientError("it tripped")
        return train(self, download, memory)

    monkeypatch.setattr(Host, "train", failing_once)
    settings = ["method=fedvpt", "privacy=dp", "privacy.max_epsilon=6", "heldout=0", "clients_per_round=5"]
    result = run(load("default", [*SMALL, *settings, "rounds=3", "evaluation.every=0"]), tmp_path / "run")
    assert result.summary["rounds"] == 2
    assert "Round 3 would spend" in result.summary["ended_early"]
    assert result.summary["privacy"]["epsilon"] <= 6
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert json.loads((tmp_path / "run" / "model.json").read_text())["rounds"] == 2
    comparison = compare_runs({("fedvpt", ""): [tmp_path / "run"]}, 0.0)
    assert comparison.note.endswith("Ended before their last round (summary.json says why): fedvpt.")
    assert comparison.rows[0].over_seeds("rounds_to_target").mean == 2
    assert any("ended early" in failure.text for failure in failures(find_runs([tmp_path])))


def test_a_private_run_all_of_whose_clients_fail_says_why_and_is_not_finished(tmp_path, monkeypatch):
    pytest.importorskip("dp_accounting")

    def failing(self: Host, download: Any, memory: Any) -> Any:
        raise ClientError("it tripped")

    monkeypatch.setattr(Host, "train", failing)
    settings = ["method=fedvpt", "privacy=dp", "heldout=0", "clients_per_round=5"]
    with pytest.raises(FedcueError, match=r"Round 1 would spend.*clients failed \(client \d: it tripped"):
        run(load("default", [*SMALL, *settings]), tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_sample_of_held_out_clients_only_is_refused_before_the_run(tmp_path: Path) -> None:
    settings = [*SMALL, "method=head", "heldout=2", "evaluation.clients=1"]
    run(load("default", [*settings, "seed=0"]), tmp_path / "tested")
    with (tmp_path / "tested" / "clients.csv").open() as table:
        assert [row["heldout"] for row in csv.DictReader(table)] == ["false"]
    with pytest.raises(ConfigError, match=r"drew held-out clients only.*Give more, or another seed"):
        run(load("default", [*settings, "seed=1"]), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_too_few_answers_before_round_0_end_the_run_in_words(tmp_path, monkeypatch):
    def failing(self: Host, client: int) -> Any:
        raise ClientError("it tripped")

    monkeypatch.setattr(Host, "warm_up", failing)
    with pytest.raises(FedcueError, match=r"0 clients answered before round 0.*it tripped"):
        run(load("default", SMALL), tmp_path / "run")


def test_a_robust_rule_is_not_used_on_fewer_updates_than_it_needs(tmp_path, monkeypatch):
    settings = ["aggregate=median", "aggregate.attackers=1", "clients_per_round=3", "heldout=0"]
    config = load("default", [*SMALL, "method=head", *settings])
    train = Host.train

    def failing_one(self: Host, download: Any, memory: Any) -> Any:
        if download.client == 1:
            raise ClientError("its disk is on fire")
        return train(self, download, memory)

    monkeypatch.setattr(Host, "train", failing_one)
    result = run(config, tmp_path / "run")
    assert all(1 not in record["clients"] for record in result.rounds)
