"""The measures of a run and paired differences over seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.run_folders import write_small_run

from fedcue.report.comparison import compare_runs
from fedcue.report.measures import Difference, measure, reference_of
from fedcue.report.runs import finished_run


def test_a_runs_cost_is_per_client_and_round_and_to_the_target_everything(tmp_path: Path) -> None:
    values = measure(finished_run(write_small_run(tmp_path / "run", 3, [0.5, None, 0.9])), 0.8)
    assert [values[name] for name in ("upload_floats", "download_floats")] == [5, 10]
    assert [values[name] for name in ("upload_bytes", "download_bytes")] == [20, 40]
    assert values["rounds_to_target"] == 3
    assert values["floats_to_target"] == 100 + 3 * 30
    assert values["client_floats_to_target"] == 3 * 15
    assert values["client_download_floats_to_target"] == 3 * 10
    assert values["warm_up_upload_floats"] == 100
    assert values["seconds_to_target"] is None, "these rounds have no time"
    assert values["seconds"] == 5


def test_a_run_of_no_rounds_has_no_cost_per_round(tmp_path: Path) -> None:
    values = measure(finished_run(write_small_run(tmp_path / "run", 0, [])), 0.8)
    assert values["upload_floats"] is None
    assert values["rounds_to_target"] is None


def test_the_interval_is_students(planned: dict[tuple[str, str], list[Path]]) -> None:
    found = Difference((-0.5, -0.2, -0.2))
    assert found.mean == pytest.approx(-0.3)
    assert found.interval is not None
    half = 4.302652729911275 * 0.1  # t(0.975; 2) times the standard error 0.1732 / sqrt(3)
    assert found.interval == pytest.approx((-0.3 - half, -0.3 + half))
    assert Difference((0.1,)).interval is None
    plain = compare_runs(planned, 0.8).plain()["differences"]
    assert [(d["method"], d["reference"]) for d in plain] == [("head_a", "pep")]
    assert plain[0]["mean_accuracy"]["interval_95"] == pytest.approx(list(found.interval))


def test_differences_pair_the_seeds_both_have(planned: dict[tuple[str, str], list[Path]]) -> None:
    planned["head_a", ""].pop(0)
    found = compare_runs(planned, 0.8).plain()["differences"][0]
    assert found["mean_accuracy"]["values"] == pytest.approx([-0.2, -0.2])
    assert "heldout_mean_accuracy" not in found


def test_a_sweep_is_compared_within_its_value_and_one_method_with_its_first_value(tmp_path: Path) -> None:
    folder = write_small_run(tmp_path / "run", 0, [0.5])
    two = compare_runs({(m, v): [folder] for m in ("head", "pep") for v in ("a=1", "a=2")}, 0.8).rows
    assert [reference_of(row, two).group.label for row in two] == ["pep a=1", "pep a=2"] * 2
    one = compare_runs({("head", v): [folder] for v in ("a=1", "a=2")}, 0.8).rows
    assert [reference_of(row, one).group.label for row in one] == ["head a=1", "head a=1"]


def test_without_pep_the_first_method_is_what_others_are_compared_with(tmp_path: Path) -> None:
    folder = write_small_run(tmp_path / "run", 0, [0.5])
    rows = compare_runs({(method, ""): [folder] for method in ("head", "fedvpt", "cue")}, 0.8).rows
    assert [reference_of(row, rows).group.label for row in rows] == ["head"] * 3
