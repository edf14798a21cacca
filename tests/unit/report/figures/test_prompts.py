"""Mixing weights and class prompts."""

from __future__ import annotations

import pytest

from fedcue.report.figures.catalogue import build
from fedcue.report.groups import RunGroup


def test_mixing_weights_by_true_class(eight: list[RunGroup]) -> None:
    figure = build("mixing-weights", eight)
    assert [panel.title for panel in figure.panels] == ["mean over blocks", "block 4", "block 5", "block 6"]
    heat = figure.panels[1].heat
    assert heat is not None
    assert (3, 3, pytest.approx(0.5)) in [tuple(cell) for cell in heat.cells]
    bars = build("mixing-weights-classes", eight, classes="2,7")
    assert [panel.title for panel in bars.panels] == ["images of 2", "images of 7"]
    assert bars.panels[0].series[0].y[2] == pytest.approx((0.5 + 0.7 + 0.8) / 3)


def test_every_class_prompt_is_a_point_and_every_snapshot_a_series(eight: list[RunGroup]) -> None:
    prompts = build("class-prompts", eight)
    assert len(prompts.panels[0].series[0].x) == 10
    over_rounds = build("class-prompts-evolution", eight)
    assert [series.name for series in over_rounds.panels[0].series] == ["round 0", "round 10", "round 20"]
