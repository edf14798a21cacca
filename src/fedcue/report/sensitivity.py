"""Mean accuracy against a setting, wherever runs differ in that setting alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcue.report.figure import Axis, Figure, Panel, Series
from fedcue.report.series import RunSeries, method_label, relevant, short, show, varying

MAX_PANELS = 8
LOG_RATIO = 30

Group = list[tuple[Any, RunSeries]]
"""Series that differ in one setting, with its values."""


def sensitivity(series: Sequence[RunSeries]) -> Figure | None:
    """Draw a panel per setting; runs that agree in everything else are one line."""
    found: dict[str, list[tuple[str, Group]]] = {}
    for method in dict.fromkeys(one.method for one in series):
        own = [one for one in series if one.method == method]
        keys = varying([one.runs[0] for one in own])
        for key in keys:
            for name, group in _groups(own, key, keys).items():
                label = ", ".join(filter(None, [method_label(method), name]))
                found.setdefault(key, []).append((label, group))
    panels = tuple(_panel(key, groups) for key, groups in list(found.items())[:MAX_PANELS])
    if not panels:
        return None
    alt = "; ".join(_in_words(panel) for panel in panels) + "."
    caption = (
        "A line joins runs that differ in this setting alone; whiskers: one standard deviation over seeds."
    )
    return Figure("sensitivity", "What the settings do", panels, caption, alt)


def _groups(own: Sequence[RunSeries], key: str, keys: Sequence[str]) -> dict[str, Group]:
    """Return the series that agree in all but ``key``, by what sets the group apart."""
    groups: dict[str, Group] = {}
    names: dict[str, str] = {}
    for one in own:
        settings = relevant(one.runs[0])
        rest = {k: v for k, v in settings.items() if k not in (key, "recipe")}
        mark = json.dumps(rest, sort_keys=True, default=str)
        names[mark] = ", ".join(f"{short(k)} {show(settings.get(k))}" for k in keys if k != key)
        if one.values("mean_accuracy"):
            groups.setdefault(mark, []).append((settings.get(key), one))
    return {names[mark]: group for mark, group in groups.items() if len(group) > 1}


def _panel(key: str, groups: Sequence[tuple[str, Group]]) -> Panel:
    values = [value for _, group in groups for value, _ in group]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    names = () if numeric else tuple(dict.fromkeys(show(value) for value in sorted(values, key=str)))
    positive = numeric and min(values) > 0
    x = Axis(short(key), log=positive and max(values) / min(values) >= LOG_RATIO, categories=names)
    lines = []
    for slot, (label, group) in enumerate(groups):
        place = {id(one): float(value if numeric else names.index(show(value))) for value, one in group}
        ordered = [one for _, one in sorted(group, key=lambda pair: place[id(pair[1])])]
        stats = np.array([one.mean_std("mean_accuracy") for one in ordered])
        band = any(len(one.runs) > 1 for one in ordered)
        lines.append(
            Series(
                label,
                [place[id(one)] for one in ordered],
                stats[:, 0].tolist(),
                slot,
                low=(stats[:, 0] - stats[:, 1]).tolist() if band else None,
                high=(stats[:, 0] + stats[:, 1]).tolist() if band else None,
            )
        )
    return Panel("line", x, Axis("mean accuracy", percent=True), tuple(lines), title=short(key))


def _in_words(panel: Panel) -> str:
    parts = []
    for line in panel.series:
        best = int(np.argmax([value or 0 for value in line.y]))
        at = line.x[best] or 0
        where = panel.x.categories[int(at)] if panel.x.categories else f"{at:g}"
        parts.append(f"{line.name} is best at {panel.x.label} {where} ({line.y[best]:.1%})")
    return "; ".join(parts)
