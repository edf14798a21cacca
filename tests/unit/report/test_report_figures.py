"""Figures are compared by their data."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from handmade import METHODS, eight_methods, round_record, write_run
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedcue.errors import ConfigError, RunFolderError
from fedcue.report.catalogue import FIGURES, build, build_all
from fedcue.report.draw import MARKERS, STYLE, paint, save
from fedcue.report.figure import plain, to_csv
from fedcue.report.palette import DARK, DARK_GROUND, LIGHT, LIGHT_GROUND, SYMBOLS, contrast
from fedcue.report.runs import find_runs, read_run
from fedcue.report.series import RunSeries, series_of


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> list[RunSeries]:
    folder = tmp_path_factory.mktemp("eight")
    return series_of(find_runs([eight_methods(folder, seeds=(0, 1))]))


def only(folder: Path) -> list[RunSeries]:
    return series_of(find_runs([folder]))


def test_accuracy_is_the_mean_over_seeds_with_the_sample_deviation(eight: list[RunSeries]) -> None:
    figure = build("accuracy-rounds", eight)
    pep = figure.panels[0].series[-1]
    assert pep.name == "PEP-FedPT"
    both = [round_record(20, "pep", seed, 0.955)["mean_accuracy"] for seed in (0, 1)]
    assert pep.x == list(range(1, 21))
    assert pep.y[-1] == pytest.approx(np.mean(both))
    assert pep.low is not None
    assert pep.y[-1] - pep.low[-1] == pytest.approx(np.std(both, ddof=1))  # type: ignore[operator]
    assert "PEP-FedPT 95." in figure.alt


def test_traffic_adds_up_both_ways_and_over_rounds(eight: list[RunSeries]) -> None:
    line = build("accuracy-bytes", eight).panels[0].series[0]
    assert line.x[0] == pytest.approx(2 * 16 * 1920 / 1e6)
    assert line.x[-1] == pytest.approx(20 * 2 * 16 * 1920 / 1e6)


def test_the_loss_axis_is_logarithmic(eight: list[RunSeries]) -> None:
    panel = build("loss-rounds", eight).panels[0]
    assert panel.y.log
    assert len(panel.series) == len(METHODS)
    assert panel.series[0].y[0] == pytest.approx(2.2 * np.exp(-0.2) + 0.05)


def test_cost_to_a_target_leaves_out_who_never_reaches_it(eight: list[RunSeries]) -> None:
    figure = build("cost-to-target", eight, target=0.9)
    rounds = figure.panels[0]
    assert {series.name for series in rounds.series} == {"pFedPG", "PEP-FedPT"}
    assert "not reached by Head-Tuning" in figure.caption
    pep = next(series for series in rounds.series if series.name == "PEP-FedPT")
    first = [
        next(n for n in range(1, 21) if round_record(n, "pep", s, 0.955)["mean_accuracy"] >= 0.9)
        for s in (0, 1)
    ]
    assert pep.y == [np.mean(first)]


def test_the_cost_counts_the_warm_start_as_the_curves_do(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    summary = json.loads((folder / "summary.json").read_text()) | {"warm_up_upload_bytes": 5_000_000}
    (folder / "summary.json").write_text(json.dumps(summary))
    series = only(tmp_path)
    cost = build("cost-to-target", series, target=0.0).panels[1].series[0].y[0]
    assert cost == pytest.approx(build("accuracy-bytes", series).panels[0].series[0].x[0])
    assert cost > 5


def test_the_cost_of_a_run_that_never_trained_is_its_warm_start(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", method="ncm", rounds=1, level=0.9)
    (folder / "metrics.jsonl").unlink()
    summary = json.loads((folder / "summary.json").read_text()) | {"warm_up_upload_bytes": 5_000_000}
    (folder / "summary.json").write_text(json.dumps(summary))
    rounds, megabytes, _ = build("cost-to-target", only(tmp_path), target=0.3).panels
    assert (rounds.series[0].y, megabytes.series[0].y) == ([0], [5])


def test_when_a_run_that_was_tested_again_reached_the_target_is_not_drawn(tmp_path: Path) -> None:
    write_run(tmp_path / "one", method="fedvpt", level=0.9)
    folder = write_run(tmp_path / "two", level=0.9)
    summary = json.loads((folder / "summary.json").read_text()) | {"tested_again": {"of": "two"}}
    (folder / "summary.json").write_text(json.dumps(summary))
    figure = build("cost-to-target", only(tmp_path), target=0.5)
    assert [series.name for series in figure.panels[0].series] == ["FedVPT"]
    assert "not reached" not in figure.caption


def test_a_run_that_never_trained_is_a_point_before_the_first_round(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", method="ncm", rounds=1)
    (folder / "metrics.jsonl").unlink()
    summary = json.loads((folder / "summary.json").read_text()) | {"warm_up_upload_bytes": 5_000_000}
    (folder / "summary.json").write_text(json.dumps(summary))
    for name, at in (("accuracy-rounds", 0), ("accuracy-bytes", 5)):
        (line,) = build(name, only(tmp_path)).panels[0].series
        assert (line.x, line.y) == ([at], [summary["mean_accuracy"]])


def test_what_sent_nothing_has_no_place_on_the_logarithmic_axis_of_traffic(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", method="ncm", rounds=1)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match="nothing to show"):
        build("accuracy-bytes", only(tmp_path))
    (line,) = build("accuracy-rounds", only(tmp_path)).panels[0].series
    assert line.x == [0]


def test_the_second_series_of_a_method_has_its_colour_and_hollow_marks(tmp_path: Path) -> None:
    for prior in ("none", "test"):
        write_run(tmp_path / prior, rounds=2, **{"method.logit_prior": prior})
    write_run(tmp_path / "other", method="fedvpt", rounds=2)
    with mpl.rc_context(STYLE):
        _, first, second = paint(build("accuracy-rounds", only(tmp_path))).axes[0].lines
    assert first.get_color() == second.get_color() == first.get_markerfacecolor()
    assert second.get_markerfacecolor() == "white"


@pytest.mark.parametrize("length", [6, 20, 40])
def test_a_legend_stays_within_the_picture(tmp_path: Path, length: int) -> None:
    for number in range(8):
        write_run(tmp_path / str(number), method=f"{number}{'m' * length}"[:length], rounds=2)
    with mpl.rc_context(STYLE):
        canvas = paint(build("accuracy-rounds", only(tmp_path)))
        FigureCanvasAgg(canvas).draw()
    legend = canvas.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= canvas.bbox.x1


def test_a_legend_has_each_name_once(tmp_path: Path) -> None:
    for number, method in enumerate(("fedvpt", "pep", "head")):
        write_run(tmp_path / str(number), method=method, rounds=2)
    lines = only(tmp_path)
    with mpl.rc_context(STYLE):
        canvas = paint(build("accuracy-rounds", [replace(lines[0], label=lines[1].label), *lines[1:]]))
    names = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert names == [lines[1].label, lines[2].label]


@pytest.mark.parametrize("value", [[], {}, 10**400, "two", None, True], ids=lambda v: str(v)[:4])
@pytest.mark.parametrize("key", ["round", "mean_accuracy", "upload_bytes", "seconds"])
def test_a_value_that_is_no_number_is_left_out_of_every_figure(tmp_path: Path, key: str, value: Any) -> None:
    folder = write_run(tmp_path / "one")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | {key: value}) for record in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    summary = json.loads((folder / "summary.json").read_text()) | {"warm_up_upload_bytes": value}
    (folder / "summary.json").write_text(json.dumps(summary))
    figures = [figure for section in build_all(only(tmp_path)).values() for figure in section]
    assert any(figure.name == "loss-rounds" for figure in figures) == (key != "round")


def test_every_client_is_a_dot_worst_first(eight: list[RunSeries]) -> None:
    figure = build("clients", eight)
    dots = figure.panels[0].series[-1]
    clients = eight[-1].runs[0].clients
    assert sorted(dots.clients) == [client.id for client in clients]
    assert dots.x[0] == min(client.accuracy for client in clients)  # type: ignore[type-var]
    assert figure.alt.startswith("Worst clients. Head-Tuning: client-")


def test_the_partition_map_shows_the_counts_and_nothing_else(eight: list[RunSeries]) -> None:
    figure = build("partition", eight)
    assert [panel.title for panel in figure.panels] == ["seed 0", "seed 1"]
    heat, counts = figure.panels[0].heat, eight[0].runs[0].class_counts
    assert heat is not None
    shown = np.zeros_like(counts)
    for row, column, value in heat.cells:
        shown[row, column] = value
    assert (shown == counts).all()


def test_generalisation_names_who_cannot_serve_new_clients(eight: list[RunSeries]) -> None:
    figure = build("generalisation", eight)
    assert len(figure.panels[0].series) == 7
    assert "No held-out result: pFedPG." in figure.caption


def test_mixing_weights_by_true_class(eight: list[RunSeries]) -> None:
    figure = build("mixing-weights", eight)
    assert [panel.title for panel in figure.panels] == ["mean over blocks", "block 4", "block 5", "block 6"]
    heat = figure.panels[1].heat
    assert heat is not None
    assert (3, 3, pytest.approx(0.5)) in [tuple(cell) for cell in heat.cells]
    bars = build("mixing-weights-classes", eight, classes="2,7")
    assert [panel.title for panel in bars.panels] == ["images of 2", "images of 7"]
    assert bars.panels[0].series[0].y[2] == pytest.approx((0.5 + 0.7 + 0.8) / 3)


def test_projections_are_the_same_every_time_and_hold_every_point(eight: list[RunSeries]) -> None:
    prompts = build("class-prompts", eight)
    again = build("class-prompts", eight)
    assert prompts == again
    assert len(prompts.panels[0].series[0].x) == 10
    over_rounds = build("class-prompts-evolution", eight)
    assert [series.name for series in over_rounds.panels[0].series] == ["round 0", "round 10", "round 20"]
    tokens = build("cls-tokens", eight)
    assert [panel.title for panel in tokens.panels] == ["after block 0", "after block 7", "after block 11"]
    assert sum(len(series.x) for series in tokens.panels[0].series) == 120


def test_prototypes(eight: list[RunSeries]) -> None:
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


def test_sensitivity_joins_runs_that_differ_in_one_setting(tmp_path: Path) -> None:
    for i, temperature in enumerate((1e-4, 0.05, 100.0)):
        for j, layers in enumerate(([0, 1, 2], [4, 5, 6])):
            level = 0.9 - 0.1 * abs(i - 1) - 0.05 * (1 - j)
            write_run(
                tmp_path / f"{i}{j}", level=level, method__temperature=temperature, method__layers=layers
            )
    figure = build("sensitivity", only(tmp_path))
    panels = {panel.title: panel for panel in figure.panels}
    assert panels["temperature"].x.log
    assert [s.name for s in panels["temperature"].series] == [
        "PEP-FedPT, layers 0-1-2",
        "PEP-FedPT, layers 4-5-6",
    ]
    assert panels["temperature"].series[0].x == [1e-4, 0.05, 100.0]
    assert panels["layers"].x.categories == ("0-1-2", "4-5-6")
    assert "layers 4-5-6 is best at temperature 0.05" in figure.alt


def test_domains(tmp_path: Path) -> None:
    write_run(tmp_path / "run", domains=("sketch", "photo"), level=0.9)
    bars = build("domains", only(tmp_path)).panels[0]
    assert bars.x.categories == ("photo", "sketch")
    assert bars.series[0].y == pytest.approx([0.88, 0.9])
    heat = build("domain-map", only(tmp_path)).panels[0].heat
    assert heat is not None
    assert sum(value for _, _, value in heat.cells) == read_run(tmp_path / "run").class_counts.sum()


def test_privacy_grows_by_round(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", done=1)
    lines = [json.dumps(round_record(n, "pep", 0, 0.9) | {"epsilon": 0.5 * n}) for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert build("privacy", only(tmp_path)).panels[0].series[0].y == [0.5, 1.0, 1.5]


def test_a_figure_without_data_says_what_it_needs(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "fedvpt", done=2)
    with pytest.raises(
        RunFolderError, match="mixing-weights has nothing to show: it needs a finished run of pep"
    ):
        build("mixing-weights", only(tmp_path))
    with pytest.raises(ConfigError, match="Did you mean 'clients'"):
        build("client", only(tmp_path))


def test_an_empty_or_first_round_gives_no_error(tmp_path: Path) -> None:
    write_run(tmp_path / "run", done=1)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert build_all(only(tmp_path)) == {}


def test_csv_holds_every_point(eight: list[RunSeries]) -> None:
    figure = build("accuracy-rounds", eight)
    rows = list(csv.DictReader(io.StringIO(to_csv(figure))))
    assert len(rows) == 8 * 20
    assert float(rows[0]["y"]) == figure.panels[0].series[0].y[0]


def test_every_figure_is_plain_json_with_words(eight: list[RunSeries]) -> None:
    for name, entry in FIGURES.items():
        figure = entry.build(eight)
        if figure is None:
            assert name in ("domains", "domain-map", "sensitivity", "privacy")
        else:
            json.dumps(plain(figure), allow_nan=False)
            assert figure.name == name
            assert figure.alt


@pytest.mark.parametrize("name", ["loss-rounds", "generalisation", "cost-to-target", "clients", "partition"])
def test_every_kind_of_figure_is_drawn(eight: list[RunSeries], tmp_path: Path, name: str) -> None:
    save(build(name, eight), tmp_path / "figure.png", tmp_path / "figure.svg")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "figure.svg").read_text()


def test_every_method_of_ours_has_a_colour_and_a_mark_of_its_own(tmp_path: Path) -> None:
    for method in (*METHODS, "ncm", "cue"):
        write_run(tmp_path / method, method=method, rounds=2)
    slots = {series.slot for series in only(tmp_path)}
    assert len(slots) == len({slot % len(LIGHT) for slot in slots}) == len(METHODS) + 2
    assert len(set(LIGHT)) == len(set(DARK)) == len(set(SYMBOLS)) == len(set(MARKERS)) == len(LIGHT)


def test_colours_stand_out_on_their_ground() -> None:
    assert min(contrast(colour, LIGHT_GROUND) for colour in LIGHT) >= 4.5
    assert min(contrast(colour, DARK_GROUND) for colour in DARK) >= 4.5
