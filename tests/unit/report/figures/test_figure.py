"""A figure's data as CSV."""

from __future__ import annotations

import csv
import io

from fedcue.report.figures.catalogue import build
from fedcue.report.figures.figure import to_csv
from fedcue.report.groups import RunGroup


def test_csv_holds_every_point(eight: list[RunGroup]) -> None:
    figure = build("accuracy-rounds", eight)
    rows = list(csv.DictReader(io.StringIO(to_csv(figure))))
    assert len(rows) == 8 * 20
    assert float(rows[0]["y"]) == figure.panels[0].series[0].y[0]
