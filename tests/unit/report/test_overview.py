"""What was run and how it went, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.run_folders import groups_in, write_run
from support.tables import roster_with

from fedcue.report.groups import RunGroup, group_runs
from fedcue.report.overview import _training, failures, headline, privacy, settings
from fedcue.report.run_files import Client
from fedcue.report.runs import RunRecord, find_runs


def test_the_headline_says_when_the_lead_is_within_the_spread(tmp_path: Path) -> None:
    for seed, level in enumerate((0.80, 0.90)):
        write_run(tmp_path / f"a{seed}", "pep", seed, level=level)
        write_run(tmp_path / f"b{seed}", "fedvpt", seed, level=level - 0.01)
    text = headline(groups_in(tmp_path))
    assert text.startswith("PEP-FedPT reaches")
    assert "within the spread over seeds" in text


def test_failures_and_privacy_are_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", done=2, privacy={"name": "paper", "epsilon": 0.2})
    Path(f"{folder}.error.txt").write_text("Traceback\n  ...\nMemoryError: too large\n")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(
            '{"round": 3, "train_loss": 1.0, "failures": [{"client": 7, "step": "train", "reason": "NaN"}]}\n'
        )
    runs = find_runs([tmp_path])
    texts = [failure.text for failure in failures(runs)]
    assert "stopped after round 3 of 20 (MemoryError: too large)" in texts[0]
    assert texts[1] == "client 7, step train, reason NaN"
    [(_, lines)] = privacy(group_runs(runs))
    assert {line.name: line.text for line in lines} == {"name": "paper", "epsilon": "0.2"}


def test_what_was_promised_is_told_with_both_accountants(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    budget = roster_with("privacy=dp", "method=cue", "clients_per_round=10").budget
    told = budget.planned().summary()["privacy"]
    write_run(tmp_path / "run", done=2, privacy=told)
    [(_, lines)] = privacy(group_runs(find_runs([tmp_path])))
    shown = {line.name: line.text for line in lines}
    assert shown["unit"] == "one training record"
    assert shown["neighbours"] == "replace-one"
    assert "exact composition" in shown["accountant"]
    numbers = {
        "epsilon",
        "delta",
        "epsilon by renyi",
        "epsilon by exact composition",
        "epsilon before rounds",
    }
    assert numbers < shown.keys()
    assert {"noise multiplier", "noise multiplier before rounds", "against", "not covered"} < shown.keys()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lr": 0.1}, "rate 0.1"),
        ({"lr": 0.1, "head_lr": 0.03}, "rate 0.03 of the head, 0.1 of the prompts"),
        ({"lr": 0.1, "head_lr": 0.03, "prompt_lr": 1.5}, "rate 0.03 of the head, 1.5 of the prompts"),
        ({"lr": 0.1, "head_lr": 0.5, "prompt_lr": 0.5}, "rate 0.5"),
        ({"epochs": 1}, "1 epoch"),
        ({"epochs": 5, "lr": 0.1}, "5 epochs, rate 0.1"),
        ({}, ""),
    ],
)
def test_epochs_and_rates_told_are_those_that_were_used(settings: dict[str, float], text: str) -> None:
    assert _training({f"training.{key}": value for key, value in settings.items()}) == text


def test_what_was_run_is_told_to_the_end() -> None:
    training = {"epochs": 1, "batch_size": 10, "optimiser": "sgd", "head_lr": 0.0005, "prompt_lr": 1.5}
    partition = {"name": "domain", "own_clients": "keep", "clients_per_domain": 1}
    run = RunRecord(Path("r"), "finished", config={"training": training, "partition": partition})  # type: ignore[arg-type]
    told = {fact.name: fact.text for fact in settings([run])}
    assert told["local training"] == "1 epoch, batch 10, sgd, rate 0.0005 of the head, 1.5 of the prompts"
    assert told["partition"] == "domain, clients per domain 1"


def led(label: str, *means: float, worst: float | None = None, state: str = "finished") -> RunGroup:
    """Return a group whose runs ended with these accuracies."""
    runs = [
        RunRecord(Path(label), state, summary={"mean_accuracy": mean, "worst_accuracy": worst})  # type: ignore[arg-type]
        for mean in means
    ]
    return RunGroup(label, label, tuple(runs))


def test_the_headline_names_the_leader_the_runner_up_and_the_worst_client_of_the_leader() -> None:
    groups = [led("a", 0.5), led("b", 0.8, 0.9, worst=0.25), led("c", 0.6)]
    assert headline(groups) == (
        "b reaches 85.0% mean accuracy, 25.0 points above c; its worst client has 25.0%."
    )
    assert headline(groups[:1]) == "a reaches 50.0% mean accuracy."
    assert headline([]) == "No accuracy is known yet."


def test_a_lead_is_within_the_spread_up_to_the_sum_of_both_deviations() -> None:
    """Deviations of 0.1 and 0.05: a lead of 0.15 is within them, one of 0.16 is not."""
    wide = led("wide", 0.8 - 0.1 / 2**0.5, 0.8 + 0.1 / 2**0.5)
    for behind, within in ((0.149, True), (0.16, False)):
        middle = 0.8 - behind
        other = led("other", middle - 0.05 / 2**0.5, middle + 0.05 / 2**0.5)
        assert ("within the spread" in headline([other, wide])) is within


def test_what_has_not_finished_leads_nothing() -> None:
    assert headline([led("a", 0.5), led("b", 0.9, state="running")]).startswith("a reaches 50.0%")


def test_clients_images_and_classes_are_counted_over_all_clients() -> None:
    clients = [Client(n, str(n), "", n == 2, 10 * n, 1000, 0.5) for n in range(1, 4)]
    run = RunRecord(Path("run"), "finished", clients=clients, model={"classes": ["x", "y"]})
    told = {fact.name: fact.text for fact in settings([run])}
    assert told["clients"] == "3, 1 of them held out; 60 training images, 2 classes"
    more = replace(run, clients=[replace(client, heldout=False) for client in [*clients, clients[0]]])
    told = {fact.name: fact.text for fact in settings([run, more])}
    assert told["clients"] == "3 to 4, 0 to 1 of them held out; 60 to 70 training images, 2 classes"


def test_untested_clients_and_bad_images_are_told_once() -> None:
    rounds = [{"round": 3, "failures": [{"step": "evaluate", "client": 4, "reason": "cold"}]}]
    summary = {
        "untested": [{"client": 4, "reason": "cold"}, {"client": 5, "reason": "warm"}],
        "bad_images": 6,
    }
    found = failures([RunRecord(Path("run"), "finished", rounds=rounds, summary=summary)])
    assert [(one.where, one.text) for one in found] == [
        ("run", "6 images could not be read."),
        ("run, round 3", "step evaluate, client 4, reason cold"),
        ("run", "step evaluate, client 5, reason warm"),
    ]
