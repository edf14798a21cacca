"""Runs that differ only in the seed form one series; its label says what sets it apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcue.config.words import flat
from fedcue.report.names import shorten
from fedcue.report.palette import COLOURS
from fedcue.report.runs import RunRecord

METHOD_LABELS = {
    "head": "Head-Tuning",
    "fedvpt": "FedVPT",
    "fedvpt_deep": "FedVPT-D",
    "fedpr": "FedPR",
    "sgpt": "SGPT",
    "pfedpg": "pFedPG",
    "ppt": "P-PT",
    "pep": "PEP-FedPT",
}
"""The names the papers use, in the order of the paper's tables."""

IRRELEVANT = {
    "seed", "environment", "workers", "device", "cache", "checkpoint", "snapshots", "log", "evaluation.chunk",
}  # fmt: skip
"""Settings, and sections of them, that do not set a series apart."""


@dataclass(frozen=True)
class RunSeries:
    """Runs of one method with the same settings and different seeds."""

    label: str
    slot: int
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.runs[0].method

    @property
    def finished(self) -> bool:
        """Whether the runs have finished (unfinished ones are never in a series with others)."""
        return self.runs[0].state == "finished"

    @property
    def tested_again(self) -> bool:
        """Whether only its end was tested (``fedcue evaluate``), so that its way there is not known."""
        return any(run.rounds and "tested_again" in run.summary for run in self.runs)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs."""
        return [run.seed for run in self.runs]

    def values(self, name: str) -> list[float]:
        """Return a metric of every run that has it."""
        return [value for run in self.runs if (value := run.last(name)) is not None]

    def mean_std(self, name: str) -> tuple[float, float] | None:
        """Return mean and sample standard deviation (0 for one value) of a metric over the seeds."""
        values = self.values(name)
        return (float(np.mean(values)), spread(values)) if values else None


def spread(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1), 0 for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def relevant(run: RunRecord) -> dict[str, Any]:
    """Return the settings that make a result, flat, the seed left out."""
    settings = flat(run.config)
    return {key: value for key, value in settings.items() if not {key, key.split(".")[0]} & IRRELEVANT}


def varying(runs: Iterable[RunRecord]) -> list[str]:
    """Return the settings in which the runs differ, the recipe's name only if nothing else does."""
    settings = [relevant(run) for run in runs]
    keys = sorted(set().union(*settings)) if settings else []
    differing = [key for key in keys if len({_frozen(s.get(key)) for s in settings}) > 1]
    return [key for key in differing if key != "recipe"] or differing


def series_of(runs: Sequence[RunRecord]) -> list[RunSeries]:
    """Group the readable runs into series, in the paper's order of methods.

    A run that has not finished stands alone, so that it does not blur the mean of those that have.
    """
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.state != "damaged":
            mark = {key: value for key, value in relevant(run).items() if key != "recipe"}
            own = "" if run.state == "finished" else str(run.path)
            groups.setdefault(_frozen(mark) + own, []).append(run)
    order = list(METHOD_LABELS)

    def place(members: list[RunRecord]) -> tuple[int, str, bool]:
        method = members[0].method
        return order.index(method) if method in order else len(order), method, members[0].state != "finished"

    found = sorted(groups.values(), key=place)
    firsts = [members[0] for members in found]
    return [
        RunSeries(label, slot, tuple(sorted(members, key=lambda run: run.seed)))
        for label, slot, members in zip(_labels(firsts), _slots(firsts), found, strict=True)
    ]


def _slots(firsts: Sequence[RunRecord]) -> list[int]:
    """Give each method its colour everywhere; further series of a method are dashed in the same colour."""
    methods = list(dict.fromkeys([*METHOD_LABELS, *(run.method for run in firsts)]))
    if len({run.method for run in firsts}) < 2:
        return list(range(len(firsts)))
    seen: dict[str, int] = {}
    slots = []
    for run in firsts:
        slots.append(methods.index(run.method) % COLOURS + COLOURS * seen.get(run.method, 0))
        seen[run.method] = seen.get(run.method, 0) + 1
    return slots


def _labels(firsts: Sequence[RunRecord]) -> list[str]:
    """Name each series by its method and by what is unusual among those of that method."""
    labels = []
    for run in firsts:
        same_method = [other for other in firsts if other.method == run.method]
        everyone, settings = [relevant(other) for other in same_method], relevant(run)
        marks = [
            f"{short(key)} {shorten(show(settings.get(key)))}"
            for key in varying(same_method)
            if not _usual(settings.get(key), [other.get(key) for other in everyone])
        ]
        if run.state != "finished":
            marks.append(f"seed {run.seed}, {run.state}")
        labels.append(", ".join([method_label(run.method), *marks]))
    return labels


def _usual(value: Any, values: Sequence[Any]) -> bool:
    """Tell whether more of the values are this one than are any other."""
    counts = Counter(map(_frozen, values))
    own = counts.pop(_frozen(value))
    return own > max(counts.values(), default=0)


def method_label(name: str) -> str:
    """Return the name a method has in the papers, or its own."""
    return METHOD_LABELS.get(name, shorten(name))


def short(key: str) -> str:
    """Return a setting's key as a label: the section is left out where the rest speaks for itself."""
    section, _, rest = key.rpartition(".")
    return key if rest in ("name", "clients", "lr") or not section else rest.replace("_", " ")


def show(value: Any) -> str:
    """Return a setting's value as a label."""
    if isinstance(value, list):
        return "-".join(map(str, value)) if value else "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "default" if value is None else str(value)


def federations(series: Iterable[RunSeries]) -> list[RunRecord]:
    """Return one run of every way the data was shared out, in the order of the series."""
    return _first_by(series, lambda run: run.class_counts.tobytes() if run.class_counts.size else None)


def _first_by(series: Iterable[RunSeries], key: Callable[[RunRecord], Any]) -> list[RunRecord]:
    found: dict[Any, RunRecord] = {}
    for one in series:
        for run in one.runs:
            mark = key(run)
            if mark is not None:
                found.setdefault(mark, run)
    return list(found.values())


def _frozen(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
