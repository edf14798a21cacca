"""Mean accuracy against a setting, wherever runs differ in that setting alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedcue.report.figures.figure import Axis, Figure, Panel, Series
from fedcue.report.groups import RunGroup, differing_settings, settings_of
from fedcue.report.labels import method_label, setting_label, value_label

_MAX_PANELS = 8
_LOG_RATIO = 30

_Sweep = list[tuple[Any, RunGroup]]
"""Groups that differ in one setting, each with its value."""


def sensitivity(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw a panel per setting; runs that agree in everything else are one line."""
    found: dict[str, list[tuple[str, _Sweep]]] = {}
    for method in dict.fromkeys(group.method for group in groups):
        own = [group for group in groups if group.method == method]
        keys = differing_settings([group.runs[0] for group in own])
        for key in keys:
            for name, sweep in _sweeps(own, key, keys).items():
                label = ", ".join(filter(None, [method_label(method), name]))
                found.setdefault(key, []).append((label, sweep))
    panels = tuple(_panel(key, sweeps) for key, sweeps in list(found.items())[:_MAX_PANELS])
    if not panels:
        return None
    alt = "; ".join(_in_words(panel) for panel in panels) + "."
    caption = (
        "A line joins runs that differ in this setting alone; whiskers: one standard deviation over seeds."
    )
    return Figure("sensitivity", "What the settings do", panels, caption, alt)


def _sweeps(own: Sequence[RunGroup], key: str, keys: Sequence[str]) -> dict[str, _Sweep]:
    """Return the groups that agree in all but ``key``, by what sets them apart from the others."""
    sweeps: dict[str, _Sweep] = {}
    names: dict[str, str] = {}
    for group in own:
        settings = settings_of(group.runs[0])
        rest = {k: v for k, v in settings.items() if k not in (key, "recipe")}
        mark = json.dumps(rest, sort_keys=True, default=str)
        others = [k for k in keys if k != key]
        names[mark] = ", ".join(f"{setting_label(k)} {value_label(settings.get(k))}" for k in others)
        if group.over_seeds("mean_accuracy").known:
            sweeps.setdefault(mark, []).append((settings.get(key), group))
    return {names[mark]: sweep for mark, sweep in sweeps.items() if len(sweep) > 1}


def _panel(key: str, sweeps: Sequence[tuple[str, _Sweep]]) -> Panel:
    values = [value for _, sweep in sweeps for value, _ in sweep]
    label, y = setting_label(key), Axis("mean accuracy", percent=True)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        low, high = min(values), max(values)
        x = Axis(label, log=low > 0 and high / low >= _LOG_RATIO)
    else:
        names = dict.fromkeys(value_label(value) for value in sorted(values, key=str))
        x = Axis(label, categories=tuple(names))
    lines = tuple(_line(name, slot, sweep, x) for slot, (name, sweep) in enumerate(sweeps))
    return Panel("line", x, y, lines, title=label)


def _line(name: str, slot: int, sweep: _Sweep, x: Axis) -> Series:
    places = [(_place(value, x), group.over_seeds("mean_accuracy")) for value, group in sweep]
    ordered = sorted(places, key=lambda pair: pair[0])
    means = [found.mean or 0.0 for _, found in ordered]
    line = Series(name, [place for place, _ in ordered], means, slot)
    if all(len(group.runs) == 1 for _, group in sweep):
        return line
    stds = [found.std or 0.0 for _, found in ordered]
    low = [mean - std for mean, std in zip(means, stds, strict=True)]
    high = [mean + std for mean, std in zip(means, stds, strict=True)]
    return replace(line, low=low, high=high)


def _place(value: Any, x: Axis) -> float:
    return float(x.categories.index(value_label(value)) if x.categories else value)


def _in_words(panel: Panel) -> str:
    parts = []
    for line in panel.series:
        best = int(np.argmax([value or 0 for value in line.y]))
        at = line.x[best] or 0
        where = panel.x.categories[int(at)] if panel.x.categories else f"{at:g}"
        parts.append(f"{line.name} is best at {panel.x.label} {where} ({line.y[best]:.1%})")
    return "; ".join(parts)
