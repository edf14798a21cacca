"""Figures as PNG and SVG files."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure as Canvas
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from fedcue.errors import ConfigError
from fedcue.record.files import write_bytes, write_text
from fedcue.report.figures.figure import Axis, Figure, Panel, to_csv
from fedcue.report.palette import LIGHT

log = logging.getLogger(__name__)

LEGEND_POINTS, KEY_POINTS = 9, 45
"""Size of a legend's letters, and the width of the line beside them with its gaps."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h")
_DASHES = ("-", "--", ":")
STYLE: Any = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e3e6ea", "axes.axisbelow": True, "axes.titlesize": 10,
    "axes.titlelocation": "left", "legend.frameon": False, "legend.fontsize": LEGEND_POINTS,
    "svg.fonttype": "none", "svg.hashsalt": "fedcue", "text.parse_math": False, "savefig.dpi": 160,
}  # fmt: skip
_OTHER_SCRIPTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP",
    "Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "IPAexGothic",
    "IPAGothic", "TakaoGothic", "NanumGothic", "Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Arial Unicode MS", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Thai",
)  # fmt: skip
"""Fonts with the letters that matplotlib's own lacks, such as Chinese and Japanese ones, where installed."""
FORMATS = (".png", ".svg", ".csv")


def save(figure: Figure, *paths: Path) -> None:
    """Write a figure to files, each in the format its name asks for."""
    for path in paths:
        if path.suffix.lower() not in FORMATS:
            raise ConfigError(
                f"Cannot write {path.name!r}: a figure is a file ending in {', '.join(FORMATS)}."
            )
    with mpl.rc_context({**STYLE, "font.family": families()}), _missing_letters_told():
        drawn = [path for path in paths if path.suffix.lower() != ".csv"]
        canvas = paint(figure) if drawn else None
        for path in paths:
            if canvas is None or path.suffix.lower() == ".csv":
                write_text(path, to_csv(figure))
                continue
            out = io.BytesIO()
            kind = path.suffix.lower()[1:]
            canvas.savefig(
                out, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": "fedcue"}
            )
            write_bytes(path, out.getvalue())


@contextmanager
def _missing_letters_told() -> Iterator[None]:
    """Say in one line that no installed font has some letters, instead of once for each letter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    if any("Glyph" in str(one.message) for one in caught):
        _tell_of_letters()
    for one in caught:
        if "Glyph" not in str(one.message):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


@cache
def _tell_of_letters() -> None:
    """Say once, however many figures are drawn, that letters are missing."""
    log.warning(
        "No font here has some letters of the labels: they are boxes in PNG files, right in SVG files. "
        "Install a font that has them, such as Debian's fonts-noto-cjk."
    )


@cache
def families() -> list[str]:
    """Return the fonts to draw with: matplotlib's own, then those installed here for other scripts."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _OTHER_SCRIPTS if name in installed)]


def paint(figure: Figure) -> Canvas:
    """Draw all panels side by side, four in a row."""
    count = len(figure.panels)
    columns = min(count, 4)
    rows = -(-count // columns)
    width = 6.4 if count == 1 else 3.9 * columns
    canvas = Canvas(figsize=(width, max(_height(p) for p in figure.panels) * rows), layout="constrained")
    grid = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, figure.panels, strict=False):
        _PAINTERS[panel.kind](axes, panel)
        axes.set_title(panel.title)
        _label(axes.xaxis, axes.set_xlabel, axes.set_xscale, panel.x)
        _label(axes.yaxis, axes.set_ylabel, axes.set_yscale, panel.y)
    for axes in grid[count:]:
        axes.set_visible(False)
    _legend(canvas, figure, grid)
    return canvas


def _height(panel: Panel) -> float:
    if panel.kind == "strip":
        return 1.0 + 0.42 * len(panel.y.categories)
    return (
        4.0 if panel.kind != "heat" or panel.heat is None else min(9.0, max(3.4, 0.09 * len(panel.heat.rows)))
    )


def _label(axis: Any, name: Callable[[str], Any], scale: Callable[[str], Any], description: Axis) -> None:
    name(description.label)
    if description.log:
        scale("log")
    if description.percent:
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    elif description.log:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())
    if description.whole:
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if description.categories and len(description.categories) <= 40:
        axis.set_ticks(range(len(description.categories)), description.categories)
        if axis.axis_name == "x" and sum(map(len, description.categories)) > 24:
            axis.set_tick_params(rotation=40)
            for tick in axis.get_ticklabels():
                tick.set_horizontalalignment("right")


def _legend(canvas: Canvas, figure: Figure, grid: Any) -> None:
    """Draw one legend for all panels, or one in each where a colour means another name there."""
    slots = {series.name: series.slot for panel in figure.panels for series in panel.series}
    if figure.panels[0].kind not in ("line", "scatter") or not 1 < len(slots) <= 16:
        return
    drawn = grid[: len(figure.panels)]
    if len(figure.panels) > 1 and len(set(slots.values())) < len(slots):
        for axes in drawn:
            axes.legend(fontsize=LEGEND_POINTS - 2)
        return
    entries: dict[str, Any] = {}  # the first of each name
    for axes in drawn:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    widest = max(TextPath((0, 0), label, size=LEGEND_POINTS).get_extents().width for label in entries)
    room = int(canvas.get_figwidth() * 72 / (KEY_POINTS + widest))
    columns = min(4, len(entries), max(1, room))
    canvas.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def _colour(slot: int) -> str:
    return LIGHT[slot % len(LIGHT)]


def _floats(values: Any) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _lines(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        x, y, colour = _floats(series.x), _floats(series.y), _colour(series.slot)
        few = len(x) <= 25
        axes.plot(
            x, y, _DASHES[series.slot // len(LIGHT) % 3], color=colour, label=series.name, linewidth=1.8,
            marker=MARKERS[series.slot % len(MARKERS)] if few else None, markersize=4.5,
            markerfacecolor=colour if series.slot < len(LIGHT) else "white",
        )  # fmt: skip
        if series.low is not None and series.high is not None:
            axes.fill_between(
                x, _floats(series.low), _floats(series.high), color=colour, alpha=0.15, linewidth=0
            )


def _scatter(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        x, y, colour = _floats(series.x), _floats(series.y), _colour(series.slot)
        axes.scatter(
            x,
            y,
            s=26,
            color=colour,
            marker=MARKERS[series.slot % len(MARKERS)],
            label=series.name,
            alpha=0.85,
        )
        if series.low is not None and series.high is not None:
            axes.vlines(x, _floats(series.low), _floats(series.high), color=colour)
        if len(panel.series) == 1 and len(series.labels) <= 120:
            for label, at_x, at_y in zip(series.labels, x, y, strict=False):
                axes.annotate(label[:18], (at_x, at_y), textcoords="offset points", xytext=(4, 3), fontsize=7)
    if panel.x.percent and panel.y.percent:
        axes.axline((0.5, 0.5), slope=1, color="#8a94a0", linewidth=1, linestyle=":")


def _bars(axes: Any, panel: Panel) -> None:
    single = all(len(series.x) == 1 for series in panel.series)
    width = 0.7 if single or len(panel.series) == 1 else 0.8 / len(panel.series)
    for i, series in enumerate(panel.series):
        shift = 0 if single or len(panel.series) == 1 else (i - (len(panel.series) - 1) / 2) * width
        axes.bar(
            _floats(series.x) + shift, _floats(series.y), width, color=_colour(series.slot), label=series.name
        )
    if not single and len(panel.series) > 1:
        axes.legend(ncols=2)


def _strip(axes: Any, panel: Panel) -> None:
    for series in panel.series:
        x, y, colour = _floats(series.x), _floats(series.y), _colour(series.slot)
        if not len(x):
            continue
        low, middle, high = np.percentile(x, [25, 50, 75])
        axes.plot([low, high], [y[0], y[0]], color=colour, alpha=0.25, linewidth=11, solid_capstyle="butt")
        axes.plot([middle, middle], [y[0] - 0.25, y[0] + 0.25], color=colour, linewidth=2)
        shift = (np.arange(len(x)) * 0.618034 % 1 - 0.5) * 0.5
        axes.scatter(x, y + shift, s=12, color=colour, alpha=0.7, linewidths=0)
    axes.invert_yaxis()


def _heat(axes: Any, panel: Panel) -> None:
    heat = panel.heat
    if heat is None:
        return
    values = np.full((len(heat.rows), len(heat.columns)), np.nan)
    for row, column, value in heat.cells:
        values[row, column] = value
    image = axes.imshow(values, aspect="auto", cmap="cividis_r", interpolation="nearest", vmin=0)
    axes.figure.colorbar(image, ax=axes, label=heat.unit, shrink=0.8)
    axes.grid(False)
    for names, axis in ((heat.columns, axes.xaxis), (heat.rows, axes.yaxis)):
        if len(names) <= 30:
            axis.set_ticks(range(len(names)), [name[:16] for name in names])
    if max((len(name) for name in heat.columns), default=0) > 3 and len(heat.columns) <= 30:
        axes.tick_params(axis="x", rotation=90)


_PAINTERS: dict[str, Callable[[Any, Panel], None]] = {
    "line": _lines, "scatter": _scatter, "bar": _bars, "strip": _strip, "heat": _heat,
}  # fmt: skip
