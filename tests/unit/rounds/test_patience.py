"""A run may end when validation images say that it gets no better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from support import SMALL

import fedcue
from fedcue.cli.run import print_result
from fedcue.errors import ConfigError
from fedcue.rounds.round_record import Patience, best_validation


def records(*accuracies: float | None) -> list[dict[str, float | None]]:
    return [{"round": number, "mean_accuracy": value} for number, value in enumerate(accuracies, 1)]


def test_it_is_over_after_as_many_rounds_that_were_no_better() -> None:
    watching = Patience(2)
    watching.add(*records(0.2, 0.5, None, 0.5))
    assert not watching.over, "a round that was not evaluated does not count"
    watching.add({"round": 5, "mean_accuracy": 0.4})
    assert "no better on validation images than round 2 with 50.0%" in watching.over
    watching.add({"round": 6, "mean_accuracy": 0.6})
    assert not watching.over


def test_without_a_limit_it_is_never_over() -> None:
    watching = Patience(None)
    watching.add(*records(0.5, *[0.1] * 50))
    assert not watching.over


def test_the_first_of_the_best_rounds_is_named() -> None:
    assert best_validation(records(0.1, 0.9, 0.3, 0.9)) == {"round": 2, "mean_accuracy": 0.9}
    assert best_validation(records(None)) is None


def test_a_run_ends_early_says_why_and_names_its_best_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*SMALL, "method=head", "rounds=9", "evaluation.on=validation", "evaluation.patience=2"]
    config = fedcue.configure("default", [*settings, "training.lr=0", "training.head_lr=0"])
    result = fedcue.run(config, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 3, "one to have a best, two without a better one"
    assert summary["best_validation"] == {"round": 1, "mean_accuracy": result.rounds[0]["mean_accuracy"]}
    assert "evaluation.patience=2" in summary["ended_early"]
    assert "ended after round 3" in result.warnings[0]
    print_result(Console(), result)
    assert "best on validation images: round 1 with" in capsys.readouterr().out
    again = fedcue.run(config, tmp_path / "run", resume=True)
    assert again.summary["rounds"] == 3, "a resumed run remembers"


def test_test_images_end_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="patience ends a run by validation images, not by test images"):
        fedcue.configure("default", ["evaluation.patience=2"])
    result = fedcue.run(fedcue.configure("default", [*SMALL, "method=head"]), tmp_path / "run")
    assert "best_validation" not in result.summary
