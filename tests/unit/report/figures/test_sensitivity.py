"""Accuracy against a setting."""

from __future__ import annotations

from pathlib import Path

from support.run_folders import groups_in, write_run

from fedcue.report.figures.catalogue import build


def test_sensitivity_joins_runs_that_differ_in_one_setting(tmp_path: Path) -> None:
    for i, temperature in enumerate((1e-4, 0.05, 100.0)):
        for j, layers in enumerate(([0, 1, 2], [4, 5, 6])):
            level = 0.9 - 0.1 * abs(i - 1) - 0.05 * (1 - j)
            write_run(
                tmp_path / f"{i}{j}", level=level, method__temperature=temperature, method__layers=layers
            )
    figure = build("sensitivity", groups_in(tmp_path))
    panels = {panel.title: panel for panel in figure.panels}
    assert panels["temperature"].x.log
    assert [s.name for s in panels["temperature"].series] == [
        "PEP-FedPT, layers 0-1-2",
        "PEP-FedPT, layers 4-5-6",
    ]
    assert panels["temperature"].series[0].x == [1e-4, 0.05, 100.0]
    assert panels["layers"].x.categories == ("0-1-2", "4-5-6")
    assert "layers 4-5-6 is best at temperature 0.05" in figure.alt
