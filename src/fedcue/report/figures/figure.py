"""The data of a figure; the page's script and matplotlib draw it, and it is written as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from fedcue.record.files import without_formula

Kind = Literal["line", "scatter", "bar", "strip", "heat"]
Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Axis:
    """What an axis shows; with categories, values on it are their indices; ``whole`` numbers are counted."""

    label: str
    log: bool = False
    percent: bool = False
    categories: tuple[str, ...] = ()
    whole: bool = False


ROUNDS = Axis("round", whole=True)


@dataclass(frozen=True)
class Series:
    """Points that belong together; ``low`` and ``high`` bound what is known of each ``y``."""

    name: str
    x: Numbers
    y: Numbers
    slot: int = 0
    low: Numbers | None = None
    high: Numbers | None = None
    labels: Sequence[str] = ()
    clients: Sequence[int] = ()
    joined: bool = False


@dataclass(frozen=True)
class Heat:
    """A map of rows by columns; only cells that are not zero are kept."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Sequence[tuple[int, int, float]]
    unit: str
    clients: Sequence[int] = ()


@dataclass(frozen=True)
class Panel:
    """One coordinate system."""

    kind: Kind
    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    heat: Heat | None = None
    title: str = ""


@dataclass(frozen=True)
class Figure:
    """A named figure: panels side by side, a caption, and a text that says what they show."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    caption: str = ""
    alt: str = ""


def plain(figure: Figure) -> dict[str, Any]:
    """Return a figure as values JSON knows, numbers rounded to what can be seen."""
    return {key: _rounded(value) for key, value in asdict(figure).items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items() if not _is_default(item)}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.5g}") if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _is_default(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | tuple) and not value)


def to_csv(figure: Figure) -> str:
    """Return the figure's data as CSV, one line per point or cell; no text can act as a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heat = any(panel.heat for panel in figure.panels)
    writer.writerow(
        ["panel", "row", "column", "value"] if heat else ["panel", "series", "x", "y", "low", "high", "label"]
    )
    for panel in figure.panels:
        rows = _heat_rows(panel.heat) if panel.heat else _point_rows(panel)
        writer.writerows(map(without_formula, [panel.title, *row]) for row in rows)
    return out.getvalue()


def _heat_rows(heat: Heat) -> Iterator[list[Any]]:
    for row, column, value in heat.cells:
        yield [heat.rows[row], heat.columns[column], value]


def _point_rows(panel: Panel) -> Iterator[list[Any]]:
    for series in panel.series:
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            low, high = (bound[i] if bound else None for bound in (series.low, series.high))
            label = series.labels[i] if series.labels else None
            yield [series.name, _named(panel.x, x), _named(panel.y, y), low, high, label]


def _named(axis: Axis, value: float | None) -> Any:
    return axis.categories[int(value)] if axis.categories and value is not None else value
