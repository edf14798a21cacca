"""What was run and how it went, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.run_folders import groups_in, write_run
from support.tables import roster_with

from fedcue.report.groups import group_runs
from fedcue.report.overview import _training, failures, headline, privacy
from fedcue.report.runs import find_runs


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
