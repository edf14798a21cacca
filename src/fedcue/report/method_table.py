"""The table of methods: what a reader compares first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedcue.report.paper import paper_numbers
from fedcue.report.runs import RunRecord, number
from fedcue.report.series import RunSeries, spread
from fedcue.report.tables import Cell, Table, short

NONE = "–"

Value = tuple[float | str | None, str]
"""What a cell is sorted by, and its text."""


@dataclass(frozen=True)
class Column:
    """A heading, what it means, and whether more is better; ``None`` where nothing is best."""

    name: str
    meaning: str
    more_is_better: bool | None


@dataclass(frozen=True)
class MethodTable:
    """The table and the numbers it is sorted by."""

    columns: tuple[Column, ...]
    table: Table
    keys: tuple[tuple[float | str | None, ...], ...]


ACCURACIES = {
    "mean_accuracy": Column("mean", "mean accuracy of the clients that train, in %", True),
    "worst_accuracy": Column("worst", "accuracy of the worst client, in %", True),
    "percentile_5_accuracy": Column("5th pct", "5th percentile of the clients' accuracies, in %", True),
    "percentile_10_accuracy": Column("10th pct", "10th percentile of the clients' accuracies, in %", True),
    "percentile_15_accuracy": Column("15th pct", "15th percentile of the clients' accuracies, in %", True),
    "heldout_mean_accuracy": Column("held-out", "mean accuracy of clients that never train, in %", True),
}
COSTS = {
    "upload_floats": Column("floats up", "floats one client sends in one round", False),
    "download_floats": Column("floats down", "floats one client receives in one round", False),
    "megabytes": Column("MB total", "everything sent and received in the whole run, in MB", False),
    "seconds": Column("time", "wall-clock seconds of the run", False),
}


def method_table(series: Sequence[RunSeries]) -> MethodTable:
    """Return a line per series, the best of each column marked."""
    paper = [paper_numbers(one.runs[0].config) for one in series]
    quoted = {key for numbers in paper for key in numbers}
    scored = [key for key in ACCURACIES if any(one.values(key) for one in series)]
    columns = (
        Column("method", "method and the settings that set it apart", None),
        Column("seeds", "number of runs", None),
        *(column for key in scored for column in _columns(key, key in quoted)), *COSTS.values(),
    )  # fmt: skip
    lines: list[list[Value]] = [
        [
            (one.label, one.label),
            (float(len(one.runs)), str(len(one.runs))),
            *(
                value
                for key in scored
                for value in (_accuracy(one, key), *[_quoted(numbers.get(key))] * (key in quoted))
            ),
            *(_cost(one, key) for key in COSTS),
        ]
        for one, numbers in zip(series, paper, strict=True)
    ]
    ended = [line for line, one in zip(lines, series, strict=True) if one.finished]
    best = [_best(column, [line[i][0] for line in ended]) for i, column in enumerate(columns)]
    cells = tuple(
        tuple(Cell(text, key is not None and key == best[i]) for i, (key, text) in enumerate(line))
        for line in lines
    )
    table = Table(tuple(column.name for column in columns), cells)
    return MethodTable(columns, table, tuple(tuple(key for key, _ in line) for line in lines))


def _best(column: Column, keys: Sequence[float | str | None]) -> float | None:
    numbers = [key for key in keys if isinstance(key, float)]
    if column.more_is_better is None or len(set(numbers)) < 2:
        return None
    return max(numbers) if column.more_is_better else min(numbers)


def _accuracy(one: RunSeries, key: str) -> Value:
    values = one.values(key)
    if not values:
        return None, NONE
    mean = 100 * sum(values) / len(values)
    return mean, f"{mean:.1f} ± {100 * spread(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def _columns(key: str, quoted: bool) -> list[Column]:
    """Return a measure's column and, where the recipe quotes the paper, the paper's beside it."""
    ours = ACCURACIES[key]
    meaning = f"{ours.meaning}, as the paper reports it at its own scale"
    return [ours, Column(f"{ours.name}, paper", meaning, None)] if quoted else [ours]


def _quoted(value: float | None) -> Value:
    return (None, NONE) if value is None else (value, f"{value:.2f}")


def _cost(one: RunSeries, key: str) -> Value:
    values = [value for run in one.runs if (value := _run_cost(run, key)) is not None]
    if not values:
        return None, NONE
    mean = sum(values) / len(values)
    if key == "seconds":
        return mean, f"{mean:.0f} s" if mean < 600 else f"{mean / 60:.0f} min"
    return mean, f"{mean:.3g}" if key == "megabytes" and mean < 1000 else short(mean)


def _run_cost(run: RunRecord, key: str) -> float | None:
    if not run.rounds:
        return None
    if key == "seconds":
        return run.last("seconds") if run.summary else sum(number(r.get("seconds")) or 0 for r in run.rounds)
    if key == "megabytes":
        return run.megabytes[-1]
    visits = sum(len(r["clients"]) for r in run.rounds if isinstance(r.get("clients"), list))
    return sum(number(r.get(key)) or 0 for r in run.rounds) / visits if visits else None
