"""The one grouping of runs: those that differ only in the seed form a group with a label of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedcue.config.scope import NOT_IN_LABELS, scope_of
from fedcue.config.words import flat
from fedcue.report.labels import METHOD_LABELS, method_label, setting_label, shorten, value_label
from fedcue.report.palette import COLOURS
from fedcue.report.runs import RunRecord, finished_run

_OWN_DATA = ("folder", "federated-folder", "parquet")
"""Datasets that have no name of their own: the name of their folder says which one it is."""


def matters(key: str) -> bool:
    """Say whether a setting such as ``method.temperature`` sets runs apart and can name their group."""
    return scope_of(key) not in NOT_IN_LABELS


@dataclass(frozen=True)
class OverSeeds:
    """One number over the runs of a group; runs without it are left out of the mean and counted."""

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
class RunGroup:
    """Runs of one method with the same settings and different seeds."""

    method: str
    label: str
    runs: tuple[RunRecord, ...]
    slot: int = 0
    """Its place in the palette."""
    variant: str = ""
    """What a grid changed, as ``key=value key=value``."""

    @property
    def finished(self) -> bool:
        """Whether its runs have finished; an unfinished run is alone in its group."""
        return self.runs[0].state == "finished"

    @property
    def tested_again(self) -> bool:
        """Whether when its runs got where they are is unknown."""
        return any(run.tested_again for run in self.runs)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs."""
        return [run.seed for run in self.runs]

    def over_seeds(self, name: str) -> OverSeeds:
        """Return a metric of all runs."""
        return OverSeeds(tuple(run.last(name) for run in self.runs))

    def domain_over_seeds(self, domain: str) -> OverSeeds:
        """Return the mean accuracy of a domain's clients of all runs."""
        return OverSeeds(tuple(run.domains.get(domain) for run in self.runs))


def group_runs(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """Group the readable runs by their settings, in the paper's order of methods.

    A run that has not finished stands alone: it must not blur the mean of those that have.
    """
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.state != "damaged":
            mark = _frozen({key: value for key, value in settings_of(run).items() if key != "recipe"})
            if run.state != "finished":
                mark += str(run.path)
            found.setdefault(mark, []).append(run)
    members = sorted(found.values(), key=_place)
    firsts = [group[0] for group in members]
    return [
        RunGroup(group[0].method, label, tuple(sorted(group, key=lambda run: run.seed)), slot)
        for label, slot, group in zip(_labels(firsts), _slots(firsts), members, strict=True)
    ]


def planned_groups(folders: Mapping[tuple[str, str], Sequence[Path]]) -> list[RunGroup]:
    """Return the groups of a grid, which knows its methods and variants and the folders of their runs."""
    return [
        RunGroup(method, f"{method} {variant}".strip(), tuple(map(finished_run, paths)), variant=variant)
        for (method, variant), paths in folders.items()
    ]


def settings_of(run: RunRecord) -> dict[str, Any]:
    """Return the settings that make a result, flat, the seed left out."""
    settings = flat(run.config)
    found = {key: value for key, value in settings.items() if matters(key)}
    if settings.get("data.name") in _OWN_DATA and "data.root" in settings:
        found["data.folder"] = Path(str(settings["data.root"])).name
    return found


def differing_settings(runs: Iterable[RunRecord]) -> list[str]:
    """Return the settings in which runs differ, the recipe's name only if nothing else does."""
    settings = [settings_of(run) for run in runs]
    keys = sorted(set().union(*settings)) if settings else []
    differing = [key for key in keys if len({_frozen(s.get(key)) for s in settings}) > 1]
    return [key for key in differing if key != "recipe"] or differing


def domains_of(groups: Iterable[RunGroup]) -> list[str]:
    """Return the domains of the clients of all runs, in order of their names."""
    return sorted({name for group in groups for run in group.runs for name in run.domains})


def federations(groups: Iterable[RunGroup]) -> list[RunRecord]:
    """Return one run of every way the data was shared out, in the order of the groups."""
    found: dict[bytes, RunRecord] = {}
    for group in groups:
        for run in group.runs:
            if run.class_counts.size:
                found.setdefault(run.class_counts.tobytes(), run)
    return list(found.values())


def _place(members: Sequence[RunRecord]) -> tuple[int, str, bool]:
    method, order = members[0].method, list(METHOD_LABELS)
    place = order.index(method) if method in order else len(order)
    return place, method, members[0].state != "finished"


def _slots(firsts: Sequence[RunRecord]) -> list[int]:
    """Give each method its colour everywhere; further groups of a method are dashed in the same colour."""
    methods = list(dict.fromkeys([*METHOD_LABELS, *(run.method for run in firsts)]))
    if len({run.method for run in firsts}) < 2:
        return list(range(len(firsts)))
    seen: Counter[str] = Counter()
    slots = []
    for run in firsts:
        slots.append(methods.index(run.method) % COLOURS + COLOURS * seen[run.method])
        seen[run.method] += 1
    return slots


def _labels(firsts: Sequence[RunRecord]) -> list[str]:
    """Name each group by its method and by what is unusual among those of that method."""
    labels = []
    for run in firsts:
        same_method = [other for other in firsts if other.method == run.method]
        everyone, settings = [settings_of(other) for other in same_method], settings_of(run)
        marks = [
            f"{setting_label(key)} {shorten(value_label(settings.get(key)))}"
            for key in differing_settings(same_method)
            if not _is_usual(settings.get(key), [other.get(key) for other in everyone])
        ]
        if run.state != "finished":
            marks.append(f"seed {run.seed}, {run.state}")
        labels.append(", ".join([method_label(run.method), *marks]))
    return labels


def _is_usual(value: Any, values: Sequence[Any]) -> bool:
    """Say whether more of the values are this one than are any other."""
    counts = Counter(map(_frozen, values))
    own = counts.pop(_frozen(value))
    return own > max(counts.values(), default=0)


def _frozen(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
