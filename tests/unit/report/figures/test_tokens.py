"""The cls tokens of test images, block by block."""

from __future__ import annotations

from fedcue.report.figures.catalogue import build
from fedcue.report.groups import RunGroup


def test_every_test_image_is_a_point_after_an_early_a_middle_and_the_last_block(
    eight: list[RunGroup],
) -> None:
    tokens = build("cls-tokens", eight)
    assert [panel.title for panel in tokens.panels] == ["after block 0", "after block 7", "after block 11"]
    assert [sum(len(series.x) for series in panel.series) for panel in tokens.panels] == [120] * 3
    assert [series.name for series in tokens.panels[0].series] == list("0123456789")
