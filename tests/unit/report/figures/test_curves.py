"""Accuracy, loss and privacy over the rounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.run_folders import METHODS, groups_in, round_record, write_run

from fedcue.errors import RunFolderError
from fedcue.report.export import write_report
from fedcue.report.figures.catalogue import build
from fedcue.report.figures.figure import plain
from fedcue.report.groups import RunGroup


def test_accuracy_is_the_mean_over_seeds_with_the_sample_deviation(eight: list[RunGroup]) -> None:
    figure = build("accuracy-rounds", eight)
    pep = figure.panels[0].series[-1]
    assert pep.name == "PEP-FedPT"
    both = [round_record(20, "pep", seed, 0.955)["mean_accuracy"] for seed in (0, 1)]
    assert pep.x == list(range(1, 21))
    assert pep.y[-1] == pytest.approx(np.mean(both))
    assert pep.low is not None
    assert pep.y[-1] - pep.low[-1] == pytest.approx(np.std(both, ddof=1))  # type: ignore[operator]
    assert "PEP-FedPT 95." in figure.alt


def test_traffic_adds_up_both_ways_and_over_rounds(eight: list[RunGroup]) -> None:
    line = build("accuracy-bytes", eight).panels[0].series[0]
    assert line.x[0] == pytest.approx(2 * 16 * 1920 / 1e6)
    assert line.x[-1] == pytest.approx(20 * 2 * 16 * 1920 / 1e6)


def test_a_last_test_that_clients_trained_for_is_a_point_of_its_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", method="pfedpg", rounds=2)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records[-1]["unadapted_mean_accuracy"] = 0.25
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    summary = json.loads((folder / "summary.json").read_text()) | {"unadapted_mean_accuracy": 0.25}
    (folder / "summary.json").write_text(json.dumps(summary))
    for name in ("accuracy-rounds", "accuracy-bytes"):
        figure = build(name, groups_in(tmp_path))
        line, point = figure.panels[0].series
        assert line.y == [records[0]["mean_accuracy"], 0.25]
        assert (point.name, point.x, point.y) == (
            "pFedPG, adapted for the last test",
            line.x[-1:],
            [summary["mean_accuracy"]],
        )
        assert "trained once more" in figure.caption
    assert len(build("loss-rounds", groups_in(tmp_path)).panels[0].series) == 1


def test_the_loss_axis_is_logarithmic(eight: list[RunGroup]) -> None:
    panel = build("loss-rounds", eight).panels[0]
    assert panel.y.log
    assert len(panel.series) == len(METHODS)
    assert panel.series[0].y[0] == pytest.approx(2.2 * np.exp(-0.2) + 0.05)


def test_losses_of_zero_have_no_place_on_a_logarithmic_axis(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", rounds=2)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    zero = [json.dumps(json.loads(line) | {"train_loss": 0.0}) + "\n" for line in lines]
    (folder / "metrics.jsonl").write_text("".join(zero))
    for name in ("loss-rounds", "loss-bytes"):
        with pytest.raises(RunFolderError, match="nothing to show"):
            build(name, groups_in(tmp_path))
    write_report([folder], tmp_path / "report.html")
    write_run(tmp_path / "two", method="fedvpt", rounds=2)
    assert len(build("loss-rounds", groups_in(tmp_path)).panels[0].series) == 1


def test_a_run_that_never_trained_is_a_point_before_the_first_round(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", method="ncm", rounds=1)
    (folder / "metrics.jsonl").unlink()
    summary = json.loads((folder / "summary.json").read_text()) | {"warm_up_upload_bytes": 5_000_000}
    (folder / "summary.json").write_text(json.dumps(summary))
    for name, at in (("accuracy-rounds", 0), ("accuracy-bytes", 5)):
        (line,) = build(name, groups_in(tmp_path)).panels[0].series
        assert (line.x, line.y) == ([at], [summary["mean_accuracy"]])


def test_what_sent_nothing_has_no_place_on_the_logarithmic_axis_of_traffic(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", method="ncm", rounds=1)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match="nothing to show"):
        build("accuracy-bytes", groups_in(tmp_path))
    (line,) = build("accuracy-rounds", groups_in(tmp_path)).panels[0].series
    assert line.x == [0]


def test_privacy_grows_by_round(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", done=1)
    lines = [json.dumps(round_record(n, "pep", 0, 0.9) | {"epsilon": 0.5 * n}) for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert build("privacy", groups_in(tmp_path)).panels[0].series[0].y == [0.5, 1.0, 1.5]


def test_rounds_are_marked_by_whole_numbers(eight: list[RunGroup]) -> None:
    assert plain(build("accuracy-rounds", eight))["panels"][0]["x"] == {"label": "round", "whole": True}
