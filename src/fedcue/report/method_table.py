"""The table of methods on the page: what a reader compares first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedcue.evaluate.curve import UNADAPTED
from fedcue.report.cost import costs_by_round, per_visit
from fedcue.report.groups import OverSeeds, RunGroup, domains_of
from fedcue.report.labels import compact, shorten
from fedcue.report.paper import domain_measure, paper_numbers
from fedcue.report.runs import RunRecord
from fedcue.report.tables import Cell, Table

NONE = "–"
ADAPTED = "†"
"""Marks accuracies for which clients trained once more, for the last test alone."""

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
    "unadapted_mean_accuracy": Column(
        "mean, not adapted",
        f"mean accuracy without what clients train for the last test alone ({ADAPTED}), in %",
        True,
    ),
    "unadapted_worst_accuracy": Column(
        "worst, not adapted", "accuracy of the worst client without that training, in %", True
    ),
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


def method_table(groups: Sequence[RunGroup]) -> MethodTable:
    """Return a line per group, the best of each column marked."""
    quotes = [paper_numbers(group.runs[0].config) for group in groups]
    quoted = {key for numbers in quotes for key in numbers}
    scored = {key: column for key, column in _accuracies(groups).items() if _is_known(key, groups)}
    columns = _columns(scored, quoted)
    lines = [_line(group, numbers, scored, quoted) for group, numbers in zip(groups, quotes, strict=True)]
    ended = [line for line, group in zip(lines, groups, strict=True) if group.finished]
    best = [_best(column, [line[i][0] for line in ended]) for i, column in enumerate(columns)]
    cells = tuple(
        tuple(Cell(text, key is not None and key == best[i]) for i, (key, text) in enumerate(line))
        for line in lines
    )
    table = Table(tuple(column.name for column in columns), cells)
    return MethodTable(columns, table, tuple(tuple(key for key, _ in line) for line in lines))


def _accuracies(groups: Sequence[RunGroup]) -> dict[str, Column]:
    """Return the columns of accuracies: those of all runs, and one for each domain."""
    columns = dict(ACCURACIES)
    for domain in domains_of(groups):
        meaning = f"mean accuracy of the clients of the domain {shorten(domain)}, in %"
        columns[domain_measure(domain)] = Column(shorten(domain), meaning, True)
    return columns


def _over_seeds(group: RunGroup, key: str) -> OverSeeds:
    domain = key.removeprefix(domain_measure(""))
    return group.over_seeds(key) if domain == key else group.domain_over_seeds(domain)


def _is_known(key: str, groups: Sequence[RunGroup]) -> bool:
    return any(_over_seeds(group, key).known for group in groups)


def _columns(scored: Mapping[str, Column], quoted: set[str]) -> tuple[Column, ...]:
    """Return the columns; where the recipe quotes the paper, the paper's stands beside ours."""
    columns = [
        Column("method", "method and the settings that set it apart", None),
        Column("seeds", "number of runs", None),
    ]
    for key, ours in scored.items():
        columns.append(ours)
        if key in quoted:
            meaning = f"{ours.meaning}, as the paper reports it at its own scale"
            columns.append(Column(f"{ours.name}, paper", meaning, None))
    return (*columns, *COSTS.values())


def _line(group: RunGroup, numbers: dict[str, float], scored: Iterable[str], quoted: set[str]) -> list[Value]:
    line: list[Value] = [(group.label, group.label), (float(len(group.runs)), str(len(group.runs)))]
    for key in scored:
        line.append(_accuracy(_over_seeds(group, key), _mark(group, key)))
        if key in quoted:
            line.append((numbers[key], f"{numbers[key]:.2f}") if key in numbers else (None, NONE))
    return [*line, *(_cost(group, key) for key in COSTS)]


def _best(column: Column, keys: Sequence[float | str | None]) -> float | None:
    numbers = [key for key in keys if isinstance(key, float)]
    if column.more_is_better is None or len(set(numbers)) < 2:
        return None
    return max(numbers) if column.more_is_better else min(numbers)


def _mark(group: RunGroup, key: str) -> str:
    adapted = group.over_seeds(f"{UNADAPTED}mean_accuracy").known and not key.startswith(UNADAPTED)
    return f" {ADAPTED}" if adapted else ""


def _accuracy(found: OverSeeds, mark: str) -> Value:
    if found.mean is None:
        return None, NONE
    text = f"{100 * found.mean:.1f}"
    spread = "" if found.std is None else f" ± {100 * found.std:.1f}"
    return 100 * found.mean, f"{text}{spread}{mark}"


def _cost(group: RunGroup, key: str) -> Value:
    mean = OverSeeds(tuple(_run_cost(run, key) for run in group.runs)).mean
    if mean is None:
        return None, NONE
    if key == "seconds":
        return mean, f"{mean:.0f} s" if mean < 600 else f"{mean / 60:.0f} min"
    return mean, f"{mean:.3g}" if key == "megabytes" and mean < 1000 else compact(mean)


def _run_cost(run: RunRecord, key: str) -> float | None:
    if not run.rounds:
        return None
    if key == "seconds":
        return run.last("seconds") if run.summary else costs_by_round(run)[-1].seconds
    if key == "megabytes":
        return costs_by_round(run)[-1].megabytes
    return per_visit(run, key)
