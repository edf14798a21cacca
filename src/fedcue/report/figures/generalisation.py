"""Clients that train against clients that never do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedcue.report.figures.figure import Axis, Figure, Panel, Series
from fedcue.report.groups import RunGroup


def generalisation(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw accuracy of the clients that train against that of clients that never do."""
    points = [(group, _point(group)) for group in groups if group.over_seeds("mean_accuracy").known]
    lines = [point for _, point in points if point is not None]
    missing = [group.label for group, point in points if point is None]
    if not lines:
        return None
    x = Axis("accuracy of clients that train", percent=True)
    y = Axis("accuracy of held-out clients", percent=True)
    caption = (
        "Up and to the right is better; above the diagonal, new clients do better than those that trained."
    )
    if missing:
        caption += f" No held-out result: {', '.join(missing)}."
    alt = "; ".join(f"{s.name}: training {s.x[0]:.1%}, held out {s.y[0]:.1%}" for s in lines)
    panel = Panel("scatter", x, y, tuple(lines))
    return Figure("generalisation", "Personalisation and generalisation", (panel,), caption, alt + ".")


def _point(group: RunGroup) -> Series | None:
    own, other = group.over_seeds("mean_accuracy").mean, group.over_seeds("heldout_mean_accuracy")
    if own is None or other.mean is None:
        return None
    point = Series(group.label, [own], [other.mean], group.slot)
    if len(group.runs) == 1:
        return point
    std = other.std or 0.0
    return replace(point, low=[other.mean - std], high=[other.mean + std])
