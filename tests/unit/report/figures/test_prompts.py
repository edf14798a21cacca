"""Mixing weights and class prompts."""

from __future__ import annotations

import numpy as np
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


def test_how_near_class_prompts_are_to_each_other_is_told(eight: list[RunGroup]) -> None:
    vectors = eight[-1].runs[0].trained["class_prompts"].astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(len(unit)) for j in range(i)]
    assert f"cosine similarity of {np.mean(pairs):.2f} (" in build("class-prompts", eight).caption
