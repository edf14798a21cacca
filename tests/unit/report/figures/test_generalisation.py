"""Clients that train against clients that never do."""

from __future__ import annotations

from fedcue.report.figures.catalogue import build
from fedcue.report.groups import RunGroup


def test_generalisation_names_who_cannot_serve_new_clients(eight: list[RunGroup]) -> None:
    figure = build("generalisation", eight)
    assert len(figure.panels[0].series) == 7
    assert "No held-out result: pFedPG." in figure.caption
