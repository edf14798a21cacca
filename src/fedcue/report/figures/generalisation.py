"""Clients that train against clients that never do, a panel for each dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedcue.report.figures.figure import Axis, Figure, Panel, Series
from fedcue.report.groups import RunGroup, group_runs
from fedcue.report.labels import shorten
from fedcue.report.palette import COLOURS
from fedcue.report.runs import RunRecord, section

OWN = Axis("accuracy of clients that train", percent=True)
_NEW = Axis("accuracy of held-out clients", percent=True)


def generalisation(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw accuracy of the clients that train against that of clients that never do."""
    panels, missing, words = [], [], []
    for dataset, members in _by_dataset(groups).items():
        points = [(group, _point(group)) for group in members if group.over_seeds("mean_accuracy").known]
        found = tuple(point for _, point in points if point is not None)
        missing += [group.label for group, point in points if point is None]
        if found:
            panels.append(Panel("scatter", OWN, _NEW, found, title=dataset))
            place = f"{dataset}: " if dataset else ""
            words.append(place + "; ".join(map(_in_words, found)))
    if not panels:
        return None
    caption = (
        "Up and to the right is better; above the diagonal, new clients do better than those that trained."
    )
    if missing:
        caption += f" No held-out result: {', '.join(dict.fromkeys(missing))}."
    alt = ". ".join(words) + "."
    return Figure("generalisation", "Personalisation and generalisation", tuple(panels), caption, alt)


def _by_dataset(groups: Sequence[RunGroup]) -> dict[str, Sequence[RunGroup]]:
    """Return the groups by dataset, named as if there were no other; a single dataset has no name."""
    runs: dict[str, list[RunRecord]] = {}
    for group in groups:
        for run in group.runs:
            name = str(section(run.config, "data").get("name", "data"))
            runs.setdefault(shorten(name), []).append(run)
    if len(runs) < 2:
        return {"": groups}
    colours = {group.method: group.slot % COLOURS for group in groups}
    return {name: _coloured(group_runs(members), colours) for name, members in runs.items()}


def _coloured(groups: Sequence[RunGroup], colours: Mapping[str, int]) -> list[RunGroup]:
    """Give each method the colour it has in every panel; further groups of it differ in their marks."""
    seen: Counter[str] = Counter()
    found = []
    for group in groups:
        found.append(replace(group, slot=colours[group.method] + COLOURS * seen[group.method]))
        seen[group.method] += 1
    return found


def _point(group: RunGroup) -> Series | None:
    own, other = group.over_seeds("mean_accuracy").mean, group.over_seeds("heldout_mean_accuracy")
    if own is None or other.mean is None:
        return None
    point = Series(group.label, [own], [other.mean], group.slot)
    if len(group.runs) == 1:
        return point
    std = other.std or 0.0
    return replace(point, low=[other.mean - std], high=[other.mean + std])


def _in_words(point: Series) -> str:
    return f"{point.name}: training {point.x[0]:.1%}, held out {point.y[0]:.1%}"
