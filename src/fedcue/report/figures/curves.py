"""Accuracy, loss and privacy against rounds and traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np

from fedcue.evaluate.curve import UNADAPTED, on_curve
from fedcue.report.cost import best_accuracy, cost_to_target, costs_by_round
from fedcue.report.figures.figure import ROUNDS, Axis, Figure, Panel, Series
from fedcue.report.groups import RunGroup
from fedcue.report.palette import COLOURS
from fedcue.report.runs import RunRecord, number

_MAX_POINTS = 400
_MEGABYTES = Axis("MB sent and received", log=True)
ACCURACY = Axis("mean accuracy of the clients", percent=True)
_LOSS = Axis("training loss", log=True)

ADAPTED = "A point of its own: each client trained once more, for the last test alone."

Points = dict[int, tuple[float, float]]
"""Round -> (x, y)."""


def _curves(
    name: str, title: str, metric: str, x: Axis, y: Axis, groups: Sequence[RunGroup]
) -> Figure | None:
    """Draw what runs measured against rounds, or against everything that travelled until then."""
    lines = [line for group in groups if (line := _line(group, metric, x, y.log)) is not None]
    if not lines:
        return None
    several = any(line.low for line in lines)
    caption = "Line: mean over seeds; band or whiskers: one standard deviation." if several else ""
    adapted = [point for group in groups if (point := _adapted(group, metric, lines)) is not None]
    if adapted:
        lines += adapted
        caption = f"{caption} {ADAPTED}".strip()
    return Figure(name, title, (Panel("line", x, y, tuple(lines)),), caption, _ends(title, lines, y))


accuracy_by_round = partial(
    _curves, "accuracy-rounds", "Accuracy by round", "mean_accuracy", ROUNDS, ACCURACY
)
accuracy_by_bytes = partial(
    _curves, "accuracy-bytes", "Accuracy by traffic", "mean_accuracy", _MEGABYTES, ACCURACY
)
loss_by_round = partial(_curves, "loss-rounds", "Training loss by round", "train_loss", ROUNDS, _LOSS)
loss_by_bytes = partial(_curves, "loss-bytes", "Training loss by traffic", "train_loss", _MEGABYTES, _LOSS)
privacy_by_round = partial(_curves, "privacy", "Privacy spent", "epsilon", ROUNDS, Axis("epsilon"))


def _adapted(group: RunGroup, metric: str, lines: Sequence[Series]) -> Series | None:
    """Return the accuracy of a last test for which clients trained once more: a point of its own."""
    line = next((line for line in lines if line.name == group.label), None)
    found = group.over_seeds(metric).mean
    if line is None or found is None or group.over_seeds(f"{UNADAPTED}{metric}").mean is None:
        return None
    return Series(f"{group.label}, adapted for the last test", line.x[-1:], [found], group.slot + COLOURS)


def _line(group: RunGroup, metric: str, x: Axis, positive: bool) -> Series | None:
    curves = [points for run in group.runs if (points := _points(run, metric, x is _MEGABYTES))]
    if not curves:
        return None
    shared = _thinned(sorted(set.intersection(*(set(points) for points in curves))))
    values = np.array([[points[r] for r in shared] for points in curves])  # [seeds, rounds, (x, y)]
    if positive:
        values[..., 1] = np.where(values[..., 1] > 0, values[..., 1], np.nan)
    mean = values.mean(0)
    if not np.isfinite(mean[:, 1]).any():  # a logarithmic axis has no place for losses of 0 alone
        return None
    line = Series(group.label, mean[:, 0].tolist(), mean[:, 1].tolist(), group.slot)
    if len(curves) == 1:
        return line
    std = values[..., 1].std(0, ddof=1)
    low, high = mean[:, 1] - std, mean[:, 1] + std
    if positive:
        low = np.maximum(low, mean[:, 1] / 10)
    return replace(line, low=low.tolist(), high=high.tolist())


def _points(run: RunRecord, metric: str, by_bytes: bool) -> Points:
    costs, points = costs_by_round(run), Points()
    if not run.rounds and (value := run.last(metric)) is not None:  # tested, never trained: one point
        points[0] = (costs[0].megabytes if by_bytes else 0, value)
    for record, cost in zip(run.rounds, costs[1:], strict=True):
        value = number(on_curve(record, metric))
        if value is not None and cost.round is not None:
            points[int(cost.round)] = (cost.megabytes if by_bytes else cost.round, value)
    if by_bytes:  # a logarithmic axis has no 0
        return {at: point for at, point in points.items() if point[0] > 0}
    return points


def _thinned(rounds: list[int]) -> list[int]:
    step = -(-len(rounds) // _MAX_POINTS)
    return rounds if step <= 1 else sorted({*rounds[::step], rounds[-1]})


def _ends(title: str, lines: Sequence[Series], y: Axis) -> str:
    """Describe where each line ends."""
    ends = [f"{line.name} {_value(line.y[-1], y)}" for line in lines if line.y and line.y[-1] is not None]
    return f"{title}, a line per method. Last values: {'; '.join(ends)}."


def _value(value: float | None, axis: Axis) -> str:
    if value is None:
        return "none"
    return f"{value:.1%}" if axis.percent else f"{value:.3g}"


COSTS = ("rounds", "MB sent and received", "seconds")


def cost_figure(groups: Sequence[RunGroup], target: float | None = None) -> Figure | None:
    """Draw the cost until the mean accuracy first reaches a target; by default one that all runs reach."""
    groups = [group for group in groups if not group.tested_again]
    best = [found for group in groups for run in group.runs if (found := best_accuracy(run)) is not None]
    if not best:
        return None
    goal = target if target is not None else float(np.floor(min(best) * 100) / 100)
    costs = [(group, mean) for group in groups if (mean := _costs(group, goal))]
    names = tuple(group.label for group, _ in costs)
    panels = []
    for title in COSTS:
        bars = tuple(Series(g.label, [i], [mean[title]], g.slot) for i, (g, mean) in enumerate(costs))
        panels.append(Panel("bar", Axis("", categories=names), Axis(title), bars, title=title))
    missed = [group.label for group in groups if group.label not in names]
    caption = f"First round whose mean accuracy reaches {goal:.1%}"
    caption += f"; not reached by {', '.join(missed)}." if missed else "."
    return Figure("cost-to-target", f"Cost of {goal:.0%} accuracy", tuple(panels), caption, caption)


def _costs(group: RunGroup, goal: float) -> Mapping[str, float]:
    """Return the mean costs over the seeds; nothing if one of them does not reach the goal."""
    found = [cost_to_target(run, goal) for run in group.runs]
    reached = [cost for cost in found if cost is not None]
    if len(reached) < len(found):
        return {}
    by_run = [(cost.round or 0.0, cost.megabytes, cost.seconds) for cost in reached]
    return dict(zip(COSTS, map(fmean, zip(*by_run, strict=True)), strict=True))
