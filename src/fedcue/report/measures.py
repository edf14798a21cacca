"""What groups of runs amount to: their measures over seeds, and paired differences to a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

from fedcue.report.cost import cost_to_target, per_visit
from fedcue.report.groups import OverSeeds, RunGroup
from fedcue.report.paper import paper_numbers
from fedcue.report.runs import RunRecord

ACCURACIES = ("mean_accuracy", "worst_accuracy", "heldout_mean_accuracy")
TRAFFIC = ("upload_floats", "download_floats", "upload_bytes", "download_bytes")
TO_TARGET = ("rounds_to_target", "floats_to_target", "client_floats_to_target")
MEASURES = (*ACCURACIES, *TRAFFIC, *TO_TARGET, "seconds")


def measure(run: RunRecord, target: float) -> dict[str, float | None]:
    """Return every measure of one run, none where it has none."""
    cost = cost_to_target(run, target)
    spent = (cost.round, cost.floats, cost.client_floats) if cost else (None, None, None)
    return {
        **{name: run.last(name) for name in ACCURACIES},
        **{name: per_visit(run, name) for name in TRAFFIC},
        **dict(zip(TO_TARGET, spent, strict=True)),
        "seconds": run.last("seconds"),
    }


@dataclass(frozen=True)
class Row:
    """A group and the measures of each of its runs."""

    group: RunGroup
    numbers: tuple[Mapping[str, float | None], ...]
    paper: Mapping[str, float]
    """What the paper reports for this group, in percent."""

    def over_seeds(self, name: str) -> OverSeeds:
        """Return one measure over the seeds."""
        return OverSeeds(tuple(numbers[name] for numbers in self.numbers))


def measured(groups: Sequence[RunGroup], target: float) -> list[Row]:
    """Measure every run of the groups."""
    rows = []
    for group in groups:
        quoted = paper_numbers(group.runs[0].config) if group.runs else {}
        rows.append(Row(group, tuple(measure(run, target) for run in group.runs), quoted))
    return rows


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


def reference_of(row: Row, rows: Sequence[Row]) -> Row:
    """Return what a row is compared with: PEP (or the first method) with the same changed settings."""
    methods = [other.group.method for other in rows]
    if len(set(methods)) == 1:
        return rows[0]
    wanted = ("pep" if "pep" in methods else methods[0], row.group.variant)
    return next(other for other in rows if (other.group.method, other.group.variant) == wanted)


def differences(row: Row, reference: Row) -> dict[str, Difference]:
    """Return the row's paired differences to the reference in each accuracy both have."""
    theirs = dict(zip(reference.group.seeds, reference.numbers, strict=True))
    found = {}
    for name in ACCURACIES:
        values = []
        for seed, numbers in zip(row.group.seeds, row.numbers, strict=True):
            ours, other = numbers[name], theirs.get(seed, {}).get(name)
            if ours is not None and other is not None:
                values.append(ours - other)
        if values:
            found[name] = Difference(tuple(values))
    return found
