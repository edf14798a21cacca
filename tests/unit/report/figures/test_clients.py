"""Accuracy of each client and domain."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.run_folders import groups_in, write_run

from fedcue.report.figures.catalogue import build
from fedcue.report.groups import RunGroup


def test_every_client_is_a_dot_worst_first(eight: list[RunGroup]) -> None:
    figure = build("clients", eight)
    dots = figure.panels[0].series[-1]
    clients = eight[-1].runs[0].clients
    assert sorted(dots.clients) == [client.id for client in clients]
    assert dots.x[0] == min(client.accuracy for client in clients)  # type: ignore[type-var]
    assert figure.alt.startswith("Worst clients. Head-Tuning: client-")


def test_a_domain_is_the_mean_of_its_clients(tmp_path: Path) -> None:
    write_run(tmp_path / "run", domains=("sketch", "photo"), level=0.9)
    bars = build("domains", groups_in(tmp_path)).panels[0]
    assert bars.x.categories == ("photo", "sketch")
    assert bars.series[0].y == pytest.approx([0.88, 0.9])
