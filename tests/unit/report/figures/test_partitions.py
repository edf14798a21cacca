"""Who holds which classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.run_folders import groups_in, write_run

from fedcue.report.figures.catalogue import build
from fedcue.report.groups import RunGroup
from fedcue.report.runs import read_run


def test_the_partition_map_shows_the_counts_and_nothing_else(eight: list[RunGroup]) -> None:
    figure = build("partition", eight)
    assert [panel.title for panel in figure.panels] == ["seed 0", "seed 1"]
    heat, counts = figure.panels[0].heat, eight[0].runs[0].class_counts
    assert heat is not None
    shown = np.zeros_like(counts)
    for row, column, value in heat.cells:
        shown[row, column] = value
    assert (shown == counts).all()


def test_every_training_image_is_in_the_map_of_domains(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", domains=("sketch", "photo"), level=0.9)
    heat = build("domain-map", groups_in(tmp_path)).panels[0].heat
    assert heat is not None
    assert heat.rows == ("photo", "sketch")
    assert sum(value for _, _, value in heat.cells) == read_run(folder).class_counts.sum()
