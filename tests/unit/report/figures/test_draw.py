"""Figures as pictures."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from support.run_folders import groups_in, write_run

from fedcue.report.figures import draw
from fedcue.report.figures.catalogue import build
from fedcue.report.figures.draw import STYLE, paint, save
from fedcue.report.figures.figure import ROUNDS, Axis, Figure, Panel, Series
from fedcue.report.groups import RunGroup


def test_the_second_series_of_a_method_has_its_colour_and_hollow_marks(tmp_path: Path) -> None:
    for prior in ("none", "test"):
        write_run(tmp_path / prior, rounds=2, **{"method.logit_prior": prior})
    write_run(tmp_path / "other", method="fedvpt", rounds=2)
    with mpl.rc_context(STYLE):
        _, first, second = paint(build("accuracy-rounds", groups_in(tmp_path))).axes[0].lines
    assert first.get_color() == second.get_color() == first.get_markerfacecolor()
    assert second.get_markerfacecolor() == "white"


@pytest.mark.parametrize("length", [6, 20, 40])
def test_a_legend_stays_within_the_picture(tmp_path: Path, length: int) -> None:
    for number in range(8):
        write_run(tmp_path / str(number), method=f"{number}{'m' * length}"[:length], rounds=2)
    with mpl.rc_context(STYLE):
        canvas = paint(build("accuracy-rounds", groups_in(tmp_path)))
        FigureCanvasAgg(canvas).draw()
    legend = canvas.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= canvas.bbox.x1


def test_a_legend_has_each_name_once(tmp_path: Path) -> None:
    for number, method in enumerate(("fedvpt", "pep", "head")):
        write_run(tmp_path / str(number), method=method, rounds=2)
    lines = groups_in(tmp_path)
    with mpl.rc_context(STYLE):
        canvas = paint(build("accuracy-rounds", [replace(lines[0], label=lines[1].label), *lines[1:]]))
    names = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert names == [lines[1].label, lines[2].label]


@pytest.mark.parametrize("name", ["loss-rounds", "generalisation", "cost-to-target", "clients", "partition"])
def test_every_kind_of_figure_is_drawn(eight: list[RunGroup], tmp_path: Path, name: str) -> None:
    save(build(name, eight), tmp_path / "figure.png", tmp_path / "figure.svg")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "figure.svg").read_text()


def test_a_legend_names_what_only_a_later_panel_shows(tmp_path: Path) -> None:
    for dataset, method in {"a": "fedvpt", "b": "pep"}.items():
        write_run(tmp_path / dataset, method, rounds=2, data__name=dataset)
    with mpl.rc_context(STYLE):
        canvas = paint(build("generalisation", groups_in(tmp_path)))
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["FedVPT", "PEP-FedPT"]


def test_a_panel_has_its_own_legend_where_a_colour_means_another_name_there(tmp_path: Path) -> None:
    for i, temperature in enumerate((0.05, 1.0)):
        for layers in ([0, 1], [4, 5]):
            settings = {"method__temperature": temperature, "method__layers": layers}
            write_run(tmp_path / f"{i}{layers[0]}", rounds=2, **settings)
    with mpl.rc_context(STYLE):
        canvas = paint(build("sensitivity", groups_in(tmp_path)))
    assert canvas.legends == []
    named = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in canvas.axes]
    assert named == [
        ["PEP-FedPT, temperature 0.05", "PEP-FedPT, temperature 1"],
        ["PEP-FedPT, layers 0-1", "PEP-FedPT, layers 4-5"],
    ]


def test_fonts_of_other_scripts_are_taken_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = [SimpleNamespace(name="IPAGothic"), SimpleNamespace(name="Comic Sans")]
    monkeypatch.setattr(draw.font_manager, "fontManager", SimpleNamespace(ttflist=installed))
    draw.families.cache_clear()
    try:
        assert draw.families() == ["DejaVu Sans", "IPAGothic"]
    finally:
        draw.families.cache_clear()


def test_letters_that_no_font_has_are_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(draw, "families", lambda: ["DejaVu Sans"])
    draw._tell_of_letters.cache_clear()
    for number, method in enumerate(("猫と犬", "鳥")):
        write_run(tmp_path / str(number), method=method, rounds=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(build("accuracy-rounds", groups_in(tmp_path)), tmp_path / "f.png", tmp_path / "f.svg")
        save(build("accuracy-rounds", groups_in(tmp_path)), tmp_path / "g.png")
    assert [record.message for record in caplog.records if "No font here has" in record.message]
    assert len(caplog.records) == 1
    assert "猫" in (tmp_path / "f.svg").read_text()


def test_a_logarithmic_axis_has_labels_at_its_round_numbers_alone() -> None:
    series = Series("a", [0.5, 1.0, 2.0, 8.0], [0.1, 0.2, 0.3, 0.4])
    panel = Panel("line", Axis("epsilon", log=True), Axis("accuracy"), (series,))
    with mpl.rc_context(STYLE):
        canvas = paint(Figure("f", "f", (panel,)))
        canvas.draw_without_rendering()
    axis = canvas.axes[0].xaxis
    assert {text for tick in axis.get_minor_ticks() if (text := tick.label1.get_text())} == set()
    assert {"0.5", "1", "2", "5"} <= {tick.get_text() for tick in axis.get_majorticklabels()}


def test_one_round_is_marked_by_a_whole_number() -> None:
    panel = Panel("line", ROUNDS, Axis("accuracy"), (Series("a", [1.0], [0.5]),))
    with mpl.rc_context(STYLE):
        canvas = paint(Figure("f", "f", (panel,)))
        canvas.draw_without_rendering()
    assert all(float(tick).is_integer() for tick in canvas.axes[0].get_xticks())
