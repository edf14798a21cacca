"""What finished runs amount to: means and spreads over seeds, cost to a target, paired differences."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit

from fedcue.errors import RunFolderError
from fedcue.record.folder import read_metrics
from fedcue.report.paper import paper_numbers

ACCURACIES = ("mean_accuracy", "worst_accuracy", "heldout_mean_accuracy")
TRAFFIC = ("upload_floats", "download_floats", "upload_bytes", "download_bytes")
COSTS = (*TRAFFIC, "rounds_to_target", "floats_to_target", "client_floats_to_target", "seconds")
MEASURES = (*ACCURACIES, *COSTS)


@dataclass(frozen=True)
class RunNumbers:
    """One run: its seed, every measure (None where there is none), and the paper's numbers for it."""

    folder: Path
    seed: int
    values: Mapping[str, float | None]
    paper: Mapping[str, float] = field(default_factory=dict)
    untested: int = 0
    """Clients that could not be tested and are not in the accuracies."""
    ended_early: bool = False
    """Whether its privacy budget was spent before its last round."""
    tested_again: bool = False
    """Whether only its end was tested (``fedcue evaluate``), so that no one knows when it got there."""


@dataclass(frozen=True)
class Measure:
    """One measure over seeds; runs without a value (a target never reached) are left out and counted."""

    values: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """The values there are."""
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """The mean of the values there are."""
        return fmean(self.known) if self.known else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation (n - 1), from two values on."""
        return stdev(self.known) if len(self.known) > 1 else None

    @property
    def complete(self) -> bool:
        """Whether every run has a value."""
        return bool(self.values) and None not in self.values


@dataclass(frozen=True)
class Row:
    """One line of the table: a method (with changed settings, if any) over its seeds."""

    method: str
    variant: str
    runs: tuple[RunNumbers, ...]

    @property
    def label(self) -> str:
        """What the line is called."""
        return f"{self.method} {self.variant}".strip()

    @property
    def paper(self) -> Mapping[str, float]:
        """What the paper reports for this line, in percent."""
        return self.runs[0].paper if self.runs else {}

    def measure(self, name: str) -> Measure:
        """Return one measure over the seeds."""
        return Measure(tuple(run.values[name] for run in self.runs))


@dataclass(frozen=True)
class Difference:
    """Paired differences of one measure to a reference over the seeds both have."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean difference."""
        return fmean(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval (Student's t over seeds), from two seeds on."""
        count = len(self.values)
        if count < 2:
            return None
        half = float(stdtrit(count - 1, 0.975)) * stdev(self.values) / math.sqrt(count)
        return self.mean - half, self.mean + half


def read_rows(groups: Mapping[tuple[str, str], Sequence[Path]], target: float) -> list[Row]:
    """Read the run folders of each method and variant."""
    return [
        Row(method, variant, tuple(read_run(folder, target) for folder in folders))
        for (method, variant), folders in groups.items()
    ]


def read_run(folder: Path, target: float) -> RunNumbers:
    """Read one finished run."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        rounds = read_metrics(folder)
        values = {name: summary[name] for name in (*ACCURACIES, "seconds")}
        values |= _per_visit(rounds) | _to_target(rounds, summary, target)
        numbers = {name: _number(values[name]) for name in MEASURES}
        return RunNumbers(
            folder, int(config["seed"]), numbers, paper_numbers(config), len(summary.get("untested", [])),
            "ended_early" in summary, bool(rounds) and "tested_again" in summary,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(
            f"{folder} is not a finished run that can be read ({type(error).__name__}: {error}). "
            "Delete the folder and run it again."
        ) from error


def _number(value: Any) -> float | None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return None if value is None else float(value)


def _per_visit(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return what one client sends and receives in one round, warm start apart."""
    visits = sum(len(record["clients"]) for record in rounds)
    return {name: sum(r[name] for r in rounds) / visits if visits else None for name in TRAFFIC}


def _to_target(
    rounds: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], target: float
) -> dict[str, float | None]:
    """Return rounds and floats until mean accuracy first reaches the target.

    Floats go both ways: those of all clients and the warm start, and those of one client in each round.
    A run that is not trained at all is there before the first round, or never.
    """
    total, client = float(summary["warm_up_upload_floats"]), 0.0
    names = ("rounds_to_target", "floats_to_target", "client_floats_to_target")
    if rounds and "tested_again" in summary:
        return dict.fromkeys(names)
    for record in rounds:
        floats = record["upload_floats"] + record["download_floats"]
        total += floats
        client += floats / len(record["clients"])
        if record.get("mean_accuracy") is not None and record["mean_accuracy"] >= target:
            return dict(zip(names, (record["round"], total, client), strict=True))
    if summary["mean_accuracy"] >= target:  # of a run that ended early, or of no rounds
        return dict(zip(names, (rounds[-1]["round"] if rounds else 0, total, client), strict=True))
    return dict.fromkeys(names)


def reference_of(row: Row, rows: Sequence[Row]) -> Row:
    """Return what a line is compared with: PEP (or the first method) with the same changed settings."""
    methods = [other.method for other in rows]
    if len(set(methods)) == 1:
        return rows[0]
    chosen = "pep" if "pep" in methods else methods[0]
    return next(other for other in rows if (other.method, other.variant) == (chosen, row.variant))


def differences(row: Row, reference: Row) -> dict[str, Difference]:
    """Return the line's paired differences to the reference in each accuracy both have."""
    theirs = {run.seed: run.values for run in reference.runs}
    found = {}
    for name in ACCURACIES:
        pairs = [(run.values[name], theirs[run.seed][name]) for run in row.runs if run.seed in theirs]
        values = tuple(ours - other for ours, other in pairs if ours is not None and other is not None)
        if values:
            found[name] = Difference(values)
    return found
