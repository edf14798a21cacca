"""Tables of docs/results, made of the CSV files that ``fedcue compare --table`` wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from results_shown import (
    CLAIMS,
    CUE_EVEN,
    DIFFERENCES,
    EVEN,
    HEADLINE,
    MAIN,
    ONE_RATE,
    PEP_EVEN,
    SPLITS,
    VALIDATION,
    VARIANTS,
    WITH_PRIOR,
    Claim,
)

from fedcue.config.layers import parse
from fedcue.config.recipes import read_recipe
from fedcue.grid.cells import describe
from fedcue.grid.options import BETWEEN_SETTINGS
from fedcue.grid.summary import group_of, place_of
from fedcue.grid.table import CONTROL, Row, RunTable, settings_of
from fedcue.report.labels import method_label
from fedcue.report.measures import Difference

NONE = "–"


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

    def table(self, name: str) -> RunTable:
        """Return a table."""
        return RunTable(self.folder / f"{name}.csv")

    def all_rows(self, table: str) -> list[Row]:
        """Return the rows of a table; none if there is no such table."""
        if table not in self._rows:
            self._rows[table] = self.table(table).rows()
        return self._rows[table]

    def rows(self, table: str, name: str) -> list[Row]:
        """Return the rows of a run by seed; refuse those that differ in more than seed and precision."""
        run = Run.named(name)
        found = [
            row
            for row in self.all_rows(table)
            if (row["method"], row["variant"]) == (run.method, run.variant) and row.get(f"{run.begin}mean")
        ]
        if len({json.dumps(_task(row), sort_keys=True) for row in found}) > 1:
            raise SystemExit(f"{table}: rows called {name!r} differ in more than seed and precision")
        if len({row["seed"] for row in found}) < len(found):
            raise SystemExit(f"{table}: rows called {name!r} have a seed twice, in two precisions")
        return sorted(found, key=lambda row: int(row["seed"]))

    def percent(self, table: str, name: str, column: str = "mean") -> str:
        """Return an accuracy in %, averaged over seeds, with their standard deviation."""
        begin, rows = Run.named(name).begin, self.rows(table, name)
        values = [100 * float(row[begin + column]) for row in rows if row.get(begin + column)]
        if not values:
            return NONE
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        return f"{fmean(values):.1f}{spread}"

    def by_client(self, table: str, name: str) -> dict[str, dict[str, float]]:
        """Return the accuracy of each client that trains, by seed and id."""
        column = f"{Run.named(name).begin}clients"
        return {row["seed"]: trained(row.get(column, "")) for row in self.rows(table, name)}

    def difference(self, table: str, one: str, other: str) -> tuple[Difference, list[float]] | None:
        """Return paired differences in points over clients and seeds, and their mean by seed."""
        ours, theirs = (self.by_client(table, name) for name in (one, other))
        both = [seed for seed in ours if ours[seed] and theirs.get(seed)]
        seeds = [[100 * (ours[s][c] - theirs[s][c]) for c in ours[s]] for s in both]
        if not seeds:
            return None
        return Difference(tuple(value for values in seeds for value in values)), [fmean(v) for v in seeds]

    def curve(self, table: str, name: str) -> dict[int, list[float]]:
        """Return the mean accuracies of every seed by round."""
        curves, found = self.table(table).curves(), dict[int, list[float]]()
        for row in self.rows(table, name):
            for point in curves.get(row["run"], []):
                found.setdefault(int(point["round"]), []).append(float(point["mean"]))
        return found


def _task(row: Row) -> dict[str, str]:
    """Return the settings of a row but its precision, which two machines may settle otherwise."""
    return {key: value for key, value in settings_of(row).items() if key != "precision"}


def trained(text: str) -> dict[str, float]:
    """Read ``id:right/images`` of the clients that train and were tested."""
    found = {}
    for part in text.split():
        client, _, counts = part.partition(":")
        right, _, images = counts.partition("/")
        if right and not images.endswith("h"):
            found[client] = int(right) / int(images)
    return found


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return lines, of which the first are headings, as a Markdown table; nothing if there are no others."""
    if len(lines) < 2:
        return "*Not run yet.*\n"
    rules = [["---", *["---:"] * (len(heads) - 1)] for heads in lines[:1]]
    return "".join(f"| {' | '.join(line)} |\n" for line in (*lines[:1], *rules, *lines[1:]))


def printed(recipe: str, method: str, variant: str = "") -> Mapping[str, float]:
    """Return the numbers that the paper prints for a method or, if one is given, for a variant of it."""
    own = read_recipe(recipe)[1].get("paper", {}).get(method, {})
    found: Mapping[str, float] = own.get(variant, {}) if variant else own
    return found


def paper_of_run(table: str, name: str) -> tuple[float | None, float | None]:
    """Return what the paper prints for a run by its name: the mean, and that of held-out clients."""
    method = Run.named(name).method
    if name == PEP_EVEN:  # it stands in a table of its own, which has no held-out clients
        return printed(f"{table}-priors", method, "method.prior=uniform").get("mean"), None
    heldout = "cifar100-heldout" if table == MAIN else table
    return printed(table, method).get("mean"), printed(heldout, method).get("heldout_mean")


def listed(results: Results, table: str) -> Iterator[tuple[str, str]]:
    """Yield label and name of the runs that a table of all methods shows, kind by kind."""
    seen: dict[tuple[str, str], None] = {}
    for row in sorted(results.all_rows(table), key=lambda row: place_of(row["method"])):
        if row["variant"] in VARIANTS and (row["variant"] != EVEN or row["method"] == "cue"):
            seen[row["method"], row["variant"]] = None
    for method, variant in seen:
        name = f"{method}: {variant}" if variant else method
        yield method_label(method) + VARIANTS[variant], name


def overview(results: Results, table: str) -> str:
    """Return all methods on one split, with and without the control, and the paper's numbers."""
    heads = [
        "",
        "mean",
        "worst",
        "held-out",
        "with log prior",
        "worst",
        "held-out",
        "paper: mean",
        "held-out",
    ]
    lines, kind = [heads], ""
    for label, name in listed(results, table):
        method = Run.named(name).method
        if group_of(method) != kind:
            kind = group_of(method)
            lines.append([f"*{kind}*", *[""] * (len(heads) - 1)])
        plain = [results.percent(table, name, column) for column in ("mean", "worst", "heldout_mean")]
        prior = [results.percent(table, name + WITH_PRIOR, c) for c in ("mean", "worst", "heldout_mean")]
        if name == "cue":  # it decides with the prior; what it has without stands below
            plain, prior = prior, plain
        theirs = paper_of_run(table, name)
        lines.append([label, *plain, *prior, *(f"{value:.1f}" if value else NONE for value in theirs)])
    return markdown(lines)


def headline(results: Results, table: str = MAIN) -> str:
    """Return the few rows that README shows: ours, with the control, and the paper's numbers."""
    lines = [["", "mean", "held-out", "with log prior", "held-out", "paper: mean", "held-out"]]
    for label, name in HEADLINE.items():
        plain = [results.percent(table, name, column) for column in ("mean", "heldout_mean")]
        prior = [results.percent(table, name + WITH_PRIOR, column) for column in ("mean", "heldout_mean")]
        if name == "cue":
            plain, prior = [results.percent(table, CUE_EVEN, c) for c in ("mean", "heldout_mean")], plain
        theirs = paper_of_run(table, name)
        if {*plain, *prior} != {NONE}:
            lines.append([label, *plain, *prior, *(f"{value:.1f}" if value else NONE for value in theirs)])
    return markdown(lines)


def splits(results: Results) -> str:
    """Return the mean accuracy on every split, with the log prior in brackets."""
    tables = [table for table in SPLITS if results.all_rows(table)]
    names = dict(pair for table in tables for pair in listed(results, table))
    lines = [["", *(SPLITS[table] for table in tables)]]
    for label, name in sorted(names.items(), key=lambda pair: place_of(Run.named(pair[1]).method)):
        cells = []
        for table in tables:
            prior = results.percent(table, name + WITH_PRIOR)
            cells.append(results.percent(table, name) + (f" ({prior})" if prior != NONE else ""))
        lines.append([label, *cells])
    return markdown(lines)


def differences(results: Results, table: str = MAIN) -> str:
    """Return paired differences of the clients that train, with an interval over them, and by seed."""
    lines = [["", "points", "95 % interval", "by seed"]]
    for one, other, label in DIFFERENCES:
        found = results.difference(table, one, other)
        if found is not None:
            difference, seeds = found
            lines.append(
                [
                    label,
                    f"{difference.mean:+.1f}",
                    interval(difference),
                    ", ".join(f"{v:+.1f}" for v in seeds),
                ]
            )
    return markdown(lines)


def interval(difference: Difference) -> str:
    """Return the interval of a difference."""
    low, high = difference.interval or (difference.mean, difference.mean)
    return f"{low:+.1f} to {high:+.1f}"


def one_rate(results: Results) -> str:
    """Return what the paper's single rate does where features have length 10, beside the pair of rates."""
    heads = ["", "validation: pair", "one rate", "test: one rate", "held-out", "with log prior", "held-out"]
    lines = [heads]
    for method in ("head", "fedvpt", "pep"):
        name = f"{method}: {ONE_RATE}"
        cells = [results.percent(VALIDATION, one) for one in (method, name)]
        for one in (name, name + WITH_PRIOR):
            cells += [results.percent(MAIN, one, column) for column in ("mean", "heldout_mean")]
        lines.append([method_label(method), *cells])
    return markdown(lines)


def claims(results: Results) -> str:
    """Return the paper's claims one by one: its difference, ours, and whether it was seen."""
    lines = [["the paper says", "there", "here", "95 % interval", "seeds", ""]]
    for claim in CLAIMS:
        lines.append([claim.text, f"{claimed(claim):+.1f}", *seen(results, claim)])
    return markdown(lines)


def claimed(claim: Claim) -> float:
    """Return the difference that the paper prints."""
    pairs = ((claim.one, claim.printed), (claim.other, claim.printed_other))
    numbers = [
        printed(recipe or claim.table, Run.named(name).method, variant).get("mean")
        for name, (recipe, variant) in pairs
    ]
    if numbers[0] is None or numbers[1] is None:
        raise SystemExit(f"{claim.text}: the recipes have no such numbers of the paper")
    return numbers[0] - numbers[1]


def seen(results: Results, claim: Claim) -> list[str]:
    """Return our difference with its interval, the number of seeds, and the verdict."""
    found = results.difference(claim.table, claim.one, claim.other)
    if found is None:
        return [NONE, NONE, NONE, "not run"]
    difference, seeds = found
    low, high = difference.interval or (difference.mean, difference.mean)
    verdict = "not seen"
    if low > 0 or high < 0:
        verdict = "seen" if (difference.mean > 0) == (claimed(claim) > 0) else "opposite"
    return [f"{difference.mean:+.1f}", interval(difference), str(len(seeds)), verdict]


def rounds(results: Results, table: str = MAIN) -> str:
    """Return the mean accuracy after the rounds in which methods were tested, averaged over seeds."""
    curves = {label: results.curve(table, name) for label, name in listed(results, table)}
    numbers = sorted({number for curve in curves.values() for number in curve})
    lines = [["rounds", *map(str, numbers)]]
    for label, curve in curves.items():
        if curve:
            lines.append([label, *(f"{100 * fmean(curve[n]):.1f}" if n in curve else NONE for n in numbers)])
    return markdown(lines)


def target(results: Results, table: str = MAIN) -> str:
    """Return the rounds, and the floats that one client received, to FedVPT's last mean accuracy."""
    goal = results.curve(table, "fedvpt")
    if not goal:
        return markdown([[]])
    level, lines = (
        fmean(goal[max(goal)]),
        [["", "rounds", "floats a client would receive", "warm start, once, up"]],
    )
    for label, name in listed(results, table):
        curve, rows = results.curve(table, name), results.rows(table, name)
        reached = [number for number in sorted(curve) if fmean(curve[number]) >= level]
        if not curve or not rows or not int(rows[0]["visits"]):
            continue
        a_visit = int(rows[0]["download_floats"]) / int(rows[0]["visits"])
        cells = (
            [f"{reached[0]}", f"{reached[0] * a_visit / 1e3:,.0f} k"] if reached else ["not reached", NONE]
        )
        clients = len(trained(rows[0]["clients"]))
        lines.append([label, *cells, f"{int(rows[0]['warm_up_floats']) / clients / 1e3:,.1f} k"])
    return f"To {100 * level:.1f} %:\n\n{markdown(lines)}"


def pages(folder: Path) -> dict[str, str]:
    """Return the tables that the documentation shows, by the name of their section."""
    results = Results(folder)
    return {
        "headline": headline(results),
        "overview": overview(results, MAIN),
        "splits": splits(results),
        "differences": differences(results),
        "one-rate": one_rate(results),
        "claims": claims(results),
        "rounds": rounds(results),
        "target": target(results),
    }
