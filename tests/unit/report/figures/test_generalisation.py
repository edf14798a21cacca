"""Clients that train against clients that never do."""

from __future__ import annotations

from pathlib import Path

from support.run_folders import groups_in, write_run

from fedcue.report.figures.catalogue import build
from fedcue.report.groups import RunGroup


def test_generalisation_names_who_cannot_serve_new_clients(eight: list[RunGroup]) -> None:
    figure = build("generalisation", eight)
    assert len(figure.panels[0].series) == 7
    assert "No held-out result: pFedPG." in figure.caption


def test_a_point_lies_at_the_accuracy_of_those_that_train_and_above_it_that_of_the_held_out(
    eight: list[RunGroup],
) -> None:
    panel = build("generalisation", eight).panels[0]
    assert (panel.x.label, panel.y.label) == (
        "accuracy of clients that train",
        "accuracy of held-out clients",
    )
    group = next(group for group in eight if group.method == "pep")
    point = next(series for series in panel.series if series.name == group.label)
    assert point.x == [group.over_seeds("mean_accuracy").mean]
    assert point.y == [group.over_seeds("heldout_mean_accuracy").mean]


def test_every_dataset_has_a_panel_with_methods_named_alike(tmp_path: Path) -> None:
    for dataset, methods in {"cifar100": ("fedvpt", "pep"), "domainnet": ("pep", "pfedpg")}.items():
        for method in methods:
            folder = tmp_path / dataset / method
            write_run(folder, method, rounds=2, data__name=dataset, partition__name=f"of {dataset}")
    figure = build("generalisation", groups_in(tmp_path))
    shown = {panel.title: [series.name for series in panel.series] for panel in figure.panels}
    assert shown == {"cifar100": ["FedVPT", "PEP-FedPT"], "domainnet": ["PEP-FedPT"]}
    first, second = (panel.series[-1] for panel in figure.panels)
    assert first.slot == second.slot, "a method has one colour in all panels"
    assert "No held-out result: pFedPG." in figure.caption
    assert "domainnet: PEP-FedPT: training" in figure.alt
