"""What groups of runs amount to: their measures over seeds, and paired differences to a reference."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit

from fedcue.evaluate.curve import UNADAPTED
from fedcue.record.files import without_formula
from fedcue.report.cost import cost_to_target, per_visit
from fedcue.report.groups import OverSeeds, RunGroup, domains_of
from fedcue.report.paper import domain_measure, paper_missed_target, paper_numbers
from fedcue.report.runs import RunRecord

ACCURACIES = ("mean_accuracy", "worst_accuracy", "heldout_mean_accuracy")
NOT_ADAPTED = tuple(f"{UNADAPTED}{name}" for name in ("mean_accuracy", "worst_accuracy"))
ADAPTATION = (*NOT_ADAPTED, "adaptation_images")
PERCENTILES = tuple(f"percentile_{percent}_accuracy" for percent in (5, 10, 15))
_TRAFFIC = ("upload_floats", "download_floats", "upload_bytes", "download_bytes")
_TO_TARGET = (
    "rounds_to_target",
    "seconds_to_target",
    "floats_to_target",
    "client_floats_to_target",
    "client_download_floats_to_target",
)
WARM_START = "warm_up_upload_floats"


def measures_of(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    """Return the names of all measures of the groups, those of their domains among them."""
    domains = map(domain_measure, domains_of(groups))
    return (*ACCURACIES, *ADAPTATION, *PERCENTILES, *domains, *_TRAFFIC, WARM_START, *_TO_TARGET, "seconds")


def is_accuracy(name: str) -> bool:
    """Say whether a measure is an accuracy: more is better, and it is shown in percent."""
    return name.endswith("_accuracy") or name.startswith(domain_measure(""))


def measure(run: RunRecord, target: float) -> dict[str, float | None]:
    """Return every measure of one run, none where it has none."""
    from_summary = (*ACCURACIES, *ADAPTATION, *PERCENTILES, WARM_START, "seconds")
    return {
        **{name: run.last(name) for name in from_summary},
        **{domain_measure(name): value for name, value in run.domains.items()},
        **{name: per_visit(run, name) for name in _TRAFFIC},
        **_to_target(run, target),
    }


def _to_target(run: RunRecord, target: float) -> dict[str, float | None]:
    cost = cost_to_target(run, target)
    if cost is None:
        return dict.fromkeys(_TO_TARGET)
    spent = (
        cost.round, cost.seconds or None, cost.floats, cost.client_floats, cost.client_download_floats,
    )  # fmt: skip
    return dict(zip(_TO_TARGET, spent, strict=True))


@dataclass(frozen=True)
class Row:
    """A group and the measures of each of its runs."""

    group: RunGroup
    numbers: tuple[Mapping[str, float | None], ...]
    paper: Mapping[str, float]
    """What the paper reports for this group, accuracies in percent."""
    paper_missed_target: bool = False
    """Whether the paper's rounds, seconds and floats were not enough."""

    @property
    def adapted(self) -> bool:
        """Whether clients trained once more for the last test alone."""
        return bool(self.over_seeds(NOT_ADAPTED[0]).known)

    def over_seeds(self, name: str) -> OverSeeds:
        """Return one measure over the seeds."""
        return OverSeeds(tuple(numbers.get(name) for numbers in self.numbers))


def measured(groups: Sequence[RunGroup], target: float) -> list[Row]:
    """Measure every run of the groups."""
    rows = []
    for group in groups:
        numbers = tuple(measure(run, target) for run in group.runs)
        config = group.runs[0].config if group.runs else {}
        rows.append(Row(group, numbers, paper_numbers(config), paper_missed_target(config)))
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


def plain_row(row: Row, measures: Sequence[str]) -> dict[str, Any]:
    """Return a row's measures over seeds and run by run, as JSON can hold them."""
    group = row.group
    plain: dict[str, Any] = {
        "method": group.method,
        "variant": group.variant,
        "seeds": group.seeds,
        "runs": [run.path.name for run in group.runs],
        "untested": [run.untested for run in group.runs],
        "ended_early": ["ended_early" in run.summary for run in group.runs],
    }
    if row.paper:
        plain["paper"] = dict(row.paper)
    for name in measures:
        found = row.over_seeds(name)
        plain[name] = {"mean": found.mean, "std": found.std, "values": list(found.values)}
    return plain


def plain_pair(row: Row, reference: Row) -> dict[str, Any]:
    """Return a row's differences to its reference, as JSON can hold them."""
    plain: dict[str, Any] = {
        "method": row.group.method,
        "variant": row.group.variant,
        "reference": reference.group.label,
    }
    for name, found in differences(row, reference).items():
        interval = None if found.interval is None else list(found.interval)
        plain[name] = {"mean": found.mean, "interval_95": interval, "values": list(found.values)}
    return plain


def rows_as_csv(rows: Sequence[Row], measures: Sequence[str]) -> str:
    """Return means and standard deviations as CSV, a line per row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "variant", "seeds", *(f"{m}_{s}" for m in measures for s in ("mean", "std"))])
    for row in rows:
        found = [row.over_seeds(name) for name in measures]
        numbers = [value for one in found for value in (one.mean, one.std)]
        texts = ["" if value is None else repr(value) for value in numbers]
        names = map(without_formula, (row.group.method, row.group.variant))
        writer.writerow([*names, len(row.group.runs), *texts])
    return text.getvalue()
