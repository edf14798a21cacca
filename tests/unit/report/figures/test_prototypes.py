"""Accuracy and drift of the prototypes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcue.report.figures.catalogue import build
from fedcue.report.groups import RunGroup


def test_the_caption_says_how_many_images_made_the_prototypes(eight: list[RunGroup]) -> None:
    run = eight[-1].runs[0]
    assert "images" not in build("prototype-accuracy", eight).caption
    run.analysis["prototype_images"] = np.array([100, 250, 40, 40])
    try:
        caption = build("prototype-accuracy", eight).caption
        assert "prototypes of 100 of 250 training images (10 a class), 40 of 40 test images named" in caption
    finally:
        del run.analysis["prototype_images"]


def test_the_five_nearest_say_nothing_where_there_are_five_classes(eight: list[RunGroup]) -> None:
    run = eight[-1].runs[0]
    few = replace(run, model={**run.model, "classes": run.classes[:5]})
    figure = build("prototype-accuracy", [replace(eight[-1], runs=(few,))])
    assert [series.name for series in figure.panels[0].series] == ["top 1"]
    best = int(np.argmax(run.analysis["prototype_top1"]))
    last = run.analysis["prototype_top1"].size - 1
    assert figure.alt.endswith(
        "the output of the last block." if best == last else f"the input of block {best}."
    )


def test_prototypes(eight: list[RunGroup]) -> None:
    accuracy = build("prototype-accuracy", eight).panels[0]
    assert [series.name for series in accuracy.series] == ["top 5", "top 1"]
    assert accuracy.series[1].y[-1] == pytest.approx(0.8)
    drift = build("prototype-drift", eight).panels[0]
    assert [series.name for series in drift.series] == ["block 4", "block 5", "block 6"]
    kept = dict(eight[-1].runs[0].snapshots)
    first, last = kept[0]["prototypes"][0], kept[20]["prototypes"][0]
    cosines = (first * last).sum(1) / (np.linalg.norm(first, axis=1) * np.linalg.norm(last, axis=1))
    assert drift.series[0].y[0] == pytest.approx(0, abs=1e-6)
    assert drift.series[0].y[-1] == pytest.approx(1 - cosines.mean(), rel=1e-4)
    assert "at round 20" in (alt := build("prototype-drift", eight).alt)
    assert alt.endswith("(cosine distance to round 0).")
    assert f"Largest drift at round 20: {max(series.y[-1] for series in drift.series):.3f} " in alt
