"""Tables of docs/results, made of the CSV files that ``fedcue compare --table`` wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from results_shown import (
    ABLATIONS,
    ALL_IMAGES,
    CUE_EVEN,
    DIFFERENCES,
    EVEN,
    FEW,
    IID,
    LONG,
    MIXED_EVENLY,
    NOISE,
    NONE,
    PATHOLOGICAL,
    PRIORS,
    RATES,
    RIVALS,
    SHORTER,
    SPLITS,
    STEPS,
    TRIALS,
    TUNING,
    TUNING_ALL_IMAGES,
    VARIANTS,
    WITH_PRIOR,
)

from fedcue.config.layers import parse
from fedcue.config.recipes import read_recipe
from fedcue.grid.cells import describe
from fedcue.grid.groups import group_of, place_of
from fedcue.grid.options import BETWEEN_SETTINGS
from fedcue.grid.table import CONTROL, Row, RunTable, settings_of
from fedcue.report.series import method_label
from fedcue.report.statistics import Difference


@dataclass(frozen=True)
class Run:
    """A run as it is named: method, changed settings, and whether the log prior is added at test."""

    method: str
    variant: str
    prior: bool

    @classmethod
    def named(cls, name: str) -> Run:
        """Read ``METHOD: key=value + log prior``."""
        plain = name.removesuffix(WITH_PRIOR)
        method, _, settings = plain.partition(": ")
        variant = describe(parse(BETWEEN_SETTINGS.split(settings))) if settings else ""
        return cls(method, variant, plain != name)

    @property
    def begin(self) -> str:
        """Return with what the columns of its accuracies begin."""
        return CONTROL if self.prior else ""


class Results:
    """The tables of a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[str, list[Row]] = {}

    @cached_property
    def tables(self) -> list[str]:
        """The names of all tables."""
        files = sorted(self.folder.glob("*.csv"))
        return [file.stem for file in files if not file.name.endswith(".curves.csv")]

    def table(self, name: str) -> RunTable:
        """Return a table."""
        return RunTable(self.folder / f"{name}.csv")

    def all_rows(self, table: str) -> list[Row]:
        """Return the rows of a table; none if there is no such table."""
        if table not in self._rows:
            self._rows[table] = self.table(table).rows()
        return self._rows[table]

    def rows(self, table: str, name: str, seed: str | None = None) -> list[Row]:
        """Return the rows of a run by seed; refuse those that differ in more than the seed."""
        run = Run.named(name)
        found = [
            row
            for row in self.all_rows(table)
            if (row["method"], row["variant"]) == (run.method, run.variant)
            and seed in (None, row["seed"])
            and row.get(f"{run.begin}mean")
        ]
        if len({json.dumps(settings_of(row), sort_keys=True) for row in found}) > 1:
            raise SystemExit(f"{table}: rows called {name!r} differ in more than the seed")
        return sorted(found, key=lambda row: int(row["seed"]))

    def accuracies(
        self,
        table: str,
        name: str,
        which: Sequence[str] = ("mean", "worst", "heldout_mean"),
        seed: str | None = None,
    ) -> str:
        """Return accuracies in %, averaged over seeds, with the standard deviation of the first of them."""
        begin, rows = Run.named(name).begin, self.rows(table, name, seed)
        if not rows:
            return NONE
        values = [[float(row[begin + column] or "nan") for row in rows] for column in which]
        shown = [f"{100 * fmean(seeds):.1f}".replace("nan", "n/a") for seeds in values]
        if len(rows) > 1:
            shown[0] += f" ± {100 * stdev(values[0]):.1f}"
        return " / ".join(shown)

    def with_control(self, table: str, name: str, seed: str | None = None) -> str:
        """Return a mean accuracy → the same model's with the log prior; cue has the prior built in."""
        pair = (CUE_EVEN, name) if name == "cue" else (name, name + WITH_PRIOR)
        found = [self.accuracies(table, one, ["mean"], seed) for one in pair]
        return found[0] if found[1] == NONE else " → ".join(found)

    def by_client(self, table: str, name: str) -> dict[str, dict[str, float]]:
        """Return the accuracy of each client that trains, by seed and id."""
        column = f"{Run.named(name).begin}clients"
        return {row["seed"]: trained(row.get(column, "")) for row in self.rows(table, name)}


def trained(text: str) -> dict[str, float]:
    """Read ``id:right/images`` of the clients that train and were tested."""
    found = {}
    for part in text.split():
        client, _, counts = part.partition(":")
        right, _, images = counts.partition("/")
        if right and not images.endswith("h"):
            found[client] = int(right) / int(images)
    return found


def table_of(
    results: Results, rows: Mapping[str, str], columns: Mapping[str, str], seed: str | None = None
) -> str:
    """Return accuracies: rows by label with the name of their runs, columns by table with their heading."""
    lines = [["", *columns.values()]]
    for label, name in rows.items():
        cells = [results.accuracies(table, name, seed=seed) for table in columns]
        if set(cells) != {NONE}:
            lines.append([label, *cells])
    return markdown(lines)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return lines, of which the first are headings, as a Markdown table."""
    rules = [["---", *["---:"] * (len(heads) - 1)] for heads in lines[:1]]
    return "".join(f"| {' | '.join(line)} |\n" for line in (*lines[:1], *rules, *lines[1:]))


def overview(results: Results, tables: Iterable[str]) -> dict[str, str]:
    """Return the rows of the table of all methods by label, each followed by its control."""
    shown = {"": "", "method.whiten=true": ", whitened", EVEN: ", without the prior"}
    found: dict[str, str] = {}
    rows = [row for table in tables for row in results.all_rows(table)]
    for row in sorted(rows, key=lambda row: place_of(row["method"])):
        if row["variant"] not in shown or (row["variant"] == EVEN and row["method"] != "cue"):
            continue
        name = f"{row['method']}: {row['variant']}" if row["variant"] else row["method"]
        label = method_label(row["method"]) + shown[row["variant"]]
        found[label] = name
        if row.get(f"{CONTROL}mean"):
            found[label + WITH_PRIOR] = name + WITH_PRIOR
    return found


def grouped(results: Results, columns: Mapping[str, str]) -> str:
    """Return the table of all methods, those of a kind one after the other under its name."""
    lines, kind = [["", *columns.values()]], ""
    for label, name in overview(results, columns).items():
        cells = [results.accuracies(table, name) for table in columns]
        if set(cells) == {NONE}:
            continue
        if group_of(Run.named(name).method) != kind:
            kind = group_of(Run.named(name).method)
            lines.append([f"*{kind}*", *[""] * len(columns)])
        lines.append([label, *cells])
    return markdown(lines)


def summary(results: Results, columns: Mapping[str, str]) -> str:
    """Return one row for each method: mean accuracy, that with the log prior at test, and the paper's."""
    lines, known = [["", *columns.values()]], dict.fromkeys(ALL_IMAGES, PATHOLOGICAL)
    for label, name in overview(results, columns).items():
        if name.endswith(WITH_PRIOR) or name == CUE_EVEN:
            continue
        cells = []
        for table in columns:
            paper = read_recipe(known.get(table, table))[1].get("paper", {}).get(name, {}).get("mean")
            cell = results.with_control(table, name)
            cells.append(f"{cell} ({paper:.1f})" if paper and cell != NONE else cell)
        if set(cells) != {NONE}:
            lines.append([label, *cells])
    return markdown(lines)


def by_round(results: Results, table: str, rows: Mapping[str, str]) -> str:
    """Return the mean accuracy of each of ``rows`` after the rounds in which it was tested, first seed."""
    curves = results.table(table).curves()
    tests: dict[str, dict[int, float]] = {}
    for label, name in rows.items():
        first = [] if name.endswith(WITH_PRIOR) else results.rows(table, name, "0")  # tested at the end only
        points = [point for row in first for point in curves.get(row["run"], [])]
        if points:
            tests[label] = {int(point["round"]): float(point["mean"]) for point in points}
    rounds = sorted({number for found in tests.values() for number in found})
    lines = [
        [label, *(f"{100 * found[number]:.1f}" if number in found else NONE for number in rounds)]
        for label, found in tests.items()
    ]
    return markdown([["rounds", *map(str, rounds)], *lines]) if lines else ""


def differences(results: Results, rows: Sequence[tuple[str, str, str, str]]) -> str:
    """Return paired differences of the clients that train, with an interval over them, and by seed."""
    lines = [["", "difference", "95 % interval over clients", "by seed"]]
    for table, one, other, label in rows:
        ours, theirs = (results.by_client(table, name) for name in (one, other))
        seeds = [[100 * (ours[s][c] - theirs[s][c]) for c in ours[s]] for s in ours if s in theirs]
        if not seeds:
            continue
        found = Difference(tuple(value for values in seeds for value in values))
        heading, means = (SPLITS | FEW | ALL_IMAGES)[table], ", ".join(f"{fmean(v):+.1f}" for v in seeds)
        low, high = found.interval or (found.mean, found.mean)
        lines.append([f"{heading}: {label}", f"{found.mean:+.1f}", f"{low:+.1f} to {high:+.1f}", means])
    return markdown(lines)


def rates(folder: Path, file: Path) -> str:
    """Return each method's validation accuracy for each pair of rates that was tried, the best in bold."""
    trials = json.loads((folder / file).read_text())["trials"] if (folder / file).is_file() else []
    cells: dict[str, dict[str, str]] = {}
    for trial in trials:
        pair = f"{trial['training.head_lr']:g}, {trial['training.prompt_lr']:g}"
        accuracy = f"{100 * trial['validation_accuracy']:.1f}"
        cells.setdefault(trial["method"], {})[pair] = f"**{accuracy}**" if trial["chosen"] else accuracy
    heads = list(dict.fromkeys(pair for row in cells.values() for pair in row))
    methods = sorted(cells, key=place_of)
    lines = [[method_label(m), *(cells[m].get(pair, NONE) for pair in heads)] for m in methods]
    return markdown([["head rate, prompt rate", *heads], *lines])


def ablations(results: Results, columns: Mapping[str, str]) -> str:
    """Return PEP-FedPT's choices one by one, with and without the log prior, first seed."""
    lines = [["", *columns.values()]]
    for label, name in ABLATIONS.items():
        cells = [results.with_control(table, name, "0") for table in columns]
        if set(cells) != {NONE}:
            lines.append([label, *cells])
    return markdown(lines)


def pages(folder: Path) -> dict[str, str]:
    """Return the tables that the documentation shows, by the name of their section."""
    results = Results(folder)
    methods = {table: {row["method"] for row in results.all_rows(table)} for table in SPLITS}
    seen = {table: name for table, name in SPLITS.items() if methods[table] - {"pep"}}  # not PEP-FedPT alone
    noisy = {table: name for table, name in SPLITS.items() if results.rows(table, "pep: privacy=paper")}
    first, all_images = {PATHOLOGICAL: SPLITS[PATHOLOGICAL]}, next(iter(ALL_IMAGES))
    everything = overview(results, ALL_IMAGES) | SHORTER
    rates_of_cue = {f"prompt rate {rate}": f"cue: training.prompt_lr={rate}" for rate in ("0.5", "1.5", "5")}
    rivals = {label: name.format("") for label, name in RIVALS.items()}
    return {
        "overview": grouped(results, seen),
        "summary": summary(results, ALL_IMAGES | {name: seen[name] for name in seen if name != IID}),
        "rounds": by_round(results, PATHOLOGICAL, overview(results, [PATHOLOGICAL])),
        "all-images": table_of(results, everything, ALL_IMAGES),
        "all-images-rounds": by_round(results, all_images, everything),
        "differences": differences(results, DIFFERENCES),
        "ablations": ablations(results, FEW | first),
        "noise": table_of(results, NOISE, noisy | FEW, "0"),
        "priors": table_of(results, PRIORS, first, "0"),
        "steps": table_of(results, STEPS, seen),
        "variants": table_of(results, VARIANTS, TRIALS),
        "rates-of-cue": table_of(results, rates_of_cue, RATES),
        "epochs": table_of(results, {label: name.format(LONG) for label, name in RIVALS.items()}, first),
        "few": table_of(results, rivals | MIXED_EVENLY, FEW),
        "rates": rates(folder, TUNING),
        "all-images-rates": rates(folder, TUNING_ALL_IMAGES),
    }
