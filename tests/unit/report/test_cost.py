"""What a run spends: by round, until it reaches a target, and in one visit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import write_small_run

from fedcue.report.cost import Cost, best_accuracy, cost_to_target, costs_by_round, per_visit
from fedcue.report.runs import RunRecord, read_run


def made(folder: Path, accuracies: list[float | None], **summary: Any) -> RunRecord:
    """Return a run of three seconds a round, with changes of its summary."""
    write_small_run(folder, 0, accuracies)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r | {"seconds": 3.0}) + "\n" for r in lines))
    known = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(known | {"warm_up_upload_bytes": 400} | summary))
    return read_run(folder)


def test_costs_add_up_round_by_round_from_the_warm_start_on(tmp_path: Path) -> None:
    before, first, second = costs_by_round(made(tmp_path / "run", [0.5, 0.6]))
    assert before == Cost(round=0, floats=100, bytes=400)
    assert first == Cost(
        round=1, floats=130, bytes=520, client_floats=15, client_download_floats=10, seconds=3
    )
    assert second == Cost(
        round=2, floats=160, bytes=640, client_floats=30, client_download_floats=20, seconds=6
    )
    assert second.megabytes == pytest.approx(640e-6)


def test_a_target_that_is_met_exactly_counts_and_one_never_met_is_none(tmp_path: Path) -> None:
    run = made(tmp_path / "run", [0.5, 0.8, 0.7])
    assert cost_to_target(run, 0.8) == costs_by_round(run)[2]
    assert cost_to_target(run, 0.81) is None
    assert best_accuracy(run) == 0.8


def test_a_run_of_no_rounds_is_at_the_target_before_the_first_or_never(tmp_path: Path) -> None:
    run = made(tmp_path / "run", [], mean_accuracy=0.85)
    assert cost_to_target(run, 0.8) == Cost(round=0, floats=100, bytes=400, seconds=2)
    assert cost_to_target(run, 0.9) is None
    assert per_visit(run, "upload_floats") is None


def test_a_run_that_ended_early_is_at_the_target_in_its_last_round(tmp_path: Path) -> None:
    run = made(tmp_path / "run", [0.5, 0.6], mean_accuracy=0.9, ended_early="the budget is spent")
    cost = cost_to_target(run, 0.8)
    assert cost is not None
    assert cost.round == 2
    assert best_accuracy(run) == 0.9


def test_a_target_reached_only_by_training_for_the_last_test_is_not_reached(tmp_path: Path) -> None:
    run = made(tmp_path / "run", [0.5, 0.9], unadapted_mean_accuracy=0.6)
    run.rounds[-1]["unadapted_mean_accuracy"] = 0.6
    assert cost_to_target(run, 0.8) is None
    assert cost_to_target(run, 0.6) == costs_by_round(run)[2]
    assert best_accuracy(run) == 0.6


def test_when_a_run_whose_end_was_tested_again_got_there_is_unknown(tmp_path: Path) -> None:
    assert cost_to_target(made(tmp_path / "run", [0.9], tested_again={"of": "run"}), 0.8) is None


def test_a_visit_is_one_client_in_one_round(tmp_path: Path) -> None:
    run = made(tmp_path / "run", [0.5, None, 0.9])
    found = {name: per_visit(run, name) for name in ("upload_floats", "download_floats", "upload_bytes")}
    assert found == {"upload_floats": 5, "download_floats": 10, "upload_bytes": 20}
