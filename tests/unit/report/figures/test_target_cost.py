"""The figure of what a target costs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.run_folders import groups_in, round_record, write_run

from fedcue.report.figures.catalogue import build
from fedcue.report.groups import RunGroup


def test_cost_to_a_target_leaves_out_who_never_reaches_it(eight: list[RunGroup]) -> None:
    figure = build("cost-to-target", eight, target=0.9)
    rounds = figure.panels[0]
    assert {series.name for series in rounds.series} == {"pFedPG", "PEP-FedPT"}
    assert "not reached by Head-Tuning" in figure.caption
    pep = next(series for series in rounds.series if series.name == "PEP-FedPT")
    first = [
        next(n for n in range(1, 21) if round_record(n, "pep", s, 0.955)["mean_accuracy"] >= 0.9)
        for s in (0, 1)
    ]
    assert pep.y == [np.mean(first)]


def test_the_cost_counts_the_warm_start_as_the_curves_do(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    summary = json.loads((folder / "summary.json").read_text()) | {"warm_up_upload_bytes": 5_000_000}
    (folder / "summary.json").write_text(json.dumps(summary))
    series = groups_in(tmp_path)
    cost = build("cost-to-target", series, target=0.0).panels[1].series[0].y[0]
    assert cost == pytest.approx(build("accuracy-bytes", series).panels[0].series[0].x[0])
    assert cost > 5


def test_the_cost_of_a_run_that_never_trained_is_its_warm_start(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", method="ncm", rounds=1, level=0.9)
    (folder / "metrics.jsonl").unlink()
    summary = json.loads((folder / "summary.json").read_text()) | {"warm_up_upload_bytes": 5_000_000}
    (folder / "summary.json").write_text(json.dumps(summary))
    rounds, megabytes, _ = build("cost-to-target", groups_in(tmp_path), target=0.3).panels
    assert (rounds.series[0].y, megabytes.series[0].y) == ([0], [5])


def test_when_a_run_that_was_tested_again_reached_the_target_is_not_drawn(tmp_path: Path) -> None:
    write_run(tmp_path / "one", method="fedvpt", level=0.9)
    folder = write_run(tmp_path / "two", level=0.9)
    summary = json.loads((folder / "summary.json").read_text()) | {"tested_again": {"of": "two"}}
    (folder / "summary.json").write_text(json.dumps(summary))
    figure = build("cost-to-target", groups_in(tmp_path), target=0.5)
    assert [series.name for series in figure.panels[0].series] == ["FedVPT"]
    assert "not reached" not in figure.caption
