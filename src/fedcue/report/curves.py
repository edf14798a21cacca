"""Accuracy and loss against rounds and bytes, and what a target accuracy costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedcue.report.figure import Axis, Figure, Panel, Series
from fedcue.report.runs import RunRecord, number
from fedcue.report.series import RunSeries

MAX_POINTS = 400
ROUNDS = Axis("round")
MEGABYTES = Axis("MB sent and received", log=True)
ACCURACY = Axis("mean accuracy of the clients", percent=True)
LOSS = Axis("training loss", log=True)

Points = dict[int, tuple[float, float]]
"""Round -> (x, y)."""


def accuracy_by_round(series: Sequence[RunSeries]) -> Figure | None:
    """Draw mean accuracy against rounds."""
    return _curves("accuracy-rounds", "Accuracy by round", series, "mean_accuracy", ROUNDS, ACCURACY)


def accuracy_by_bytes(series: Sequence[RunSeries]) -> Figure | None:
    """Draw mean accuracy against everything that travelled so far."""
    return _curves("accuracy-bytes", "Accuracy by traffic", series, "mean_accuracy", MEGABYTES, ACCURACY)


def loss_by_round(series: Sequence[RunSeries]) -> Figure | None:
    """Draw the clients' training loss against rounds."""
    return _curves("loss-rounds", "Training loss by round", series, "train_loss", ROUNDS, LOSS)


def loss_by_bytes(series: Sequence[RunSeries]) -> Figure | None:
    """Draw the clients' training loss against everything that travelled so far."""
    return _curves("loss-bytes", "Training loss by traffic", series, "train_loss", MEGABYTES, LOSS)


def privacy_by_round(series: Sequence[RunSeries]) -> Figure | None:
    """Draw the privacy budget spent so far, where runs account for one."""
    return _curves("privacy", "Privacy spent", series, "epsilon", ROUNDS, Axis("epsilon"))


def _curves(
    name: str, title: str, series: Sequence[RunSeries], metric: str, x: Axis, y: Axis
) -> Figure | None:
    lines = [line for one in series if (line := _line(one, metric, x, y.log)) is not None]
    if not lines:
        return None
    several = any(line.low for line in lines)
    caption = "Line: mean over seeds; band or whiskers: one standard deviation." if several else ""
    return Figure(name, title, (Panel("line", x, y, tuple(lines)),), caption, _ends(title, lines, y))


def _line(one: RunSeries, metric: str, x: Axis, positive: bool) -> Series | None:
    curves = [points for run in one.runs if (points := _points(run, metric, x is MEGABYTES))]
    if not curves:
        return None
    common = sorted(set.intersection(*(set(points) for points in curves)))
    shared = _thinned(common)
    values = np.array([[points[r] for r in shared] for points in curves])  # [seeds, rounds, (x, y)]
    if positive:
        values[..., 1] = np.where(values[..., 1] > 0, values[..., 1], np.nan)
    band = len(curves) > 1
    mean, std = values.mean(0), values[..., 1].std(0, ddof=int(band))
    low, high = mean[:, 1] - std, mean[:, 1] + std
    if positive:
        low = np.maximum(low, mean[:, 1] / 10)
    return Series(
        one.label, mean[:, 0].tolist(), mean[:, 1].tolist(), one.slot,
        low.tolist() if band else None, high.tolist() if band else None,
    )  # fmt: skip


def _points(run: RunRecord, metric: str, by_bytes: bool) -> Points:
    points: Points = {}
    if not run.rounds and (value := run.last(metric)) is not None:  # tested, never trained: one point
        points[0] = (run.megabytes[0] if by_bytes else 0, value)
    for record, megabytes in zip(run.rounds, run.megabytes[1:], strict=True):
        value, round_ = number(record.get(metric)), number(record.get("round"))
        if value is not None and round_ is not None:
            points[int(round_)] = (megabytes if by_bytes else round_, value)
    return {at: point for at, point in points.items() if point[0] > 0 or not by_bytes}  # its axis has no 0


def _thinned(rounds: list[int]) -> list[int]:
    step = -(-len(rounds) // MAX_POINTS)
    return rounds if step <= 1 else sorted({*rounds[::step], rounds[-1]})


def _ends(title: str, lines: Sequence[Series], y: Axis) -> str:
    """Say in words where each line ends."""
    ends = [f"{line.name} {_value(line.y[-1], y)}" for line in lines if line.y and line.y[-1] is not None]
    return f"{title}, a line per method. Last values: {'; '.join(ends)}."


def _value(value: float | None, axis: Axis) -> str:
    return "none" if value is None else f"{value:.1%}" if axis.percent else f"{value:.3g}"


def cost_to_target(series: Sequence[RunSeries], target: float | None = None) -> Figure | None:
    """Draw rounds, traffic and time until the mean accuracy first reaches a target."""
    series = [one for one in series if not one.tested_again]
    best = [max(ys) for one in series for run in one.runs if (ys := _accuracies(run))]
    if not best:
        return None
    goal = target if target is not None else float(np.floor(min(best) * 100) / 100)
    costs = [(one, found) for one in series if (found := _costs(one, goal))]
    names = tuple(one.label for one, _ in costs)
    panels = []
    for title, key in (("rounds", "rounds"), ("MB sent and received", "bytes"), ("seconds", "seconds")):
        values = tuple(Series(one.label, [i], [found[key]], one.slot) for i, (one, found) in enumerate(costs))
        panels.append(Panel("bar", Axis("", categories=names), Axis(title), values, title=title))
    missed = [one.label for one in series if one.label not in names]
    caption = f"First round whose mean accuracy reaches {goal:.1%}" + (
        f"; not reached by {', '.join(missed)}." if missed else "."
    )
    return Figure("cost-to-target", f"Cost of {goal:.0%} accuracy", tuple(panels), caption, caption)


def _accuracies(run: RunRecord) -> list[float]:
    if not run.rounds and (last := run.last("mean_accuracy")) is not None:
        return [last]
    return [value for record in run.rounds if (value := number(record.get("mean_accuracy"))) is not None]


def _costs(one: RunSeries, goal: float) -> Mapping[str, float]:
    """Return the mean cost over the seeds that reach the goal; nothing if one does not."""
    found = [_cost(run, goal) for run in one.runs]
    reached = [cost for cost in found if cost]
    if not reached or len(reached) < len(found):
        return {}
    return {key: float(np.mean([cost[key] for cost in reached])) for key in reached[0]}


def _cost(run: RunRecord, goal: float) -> dict[str, float]:
    if not run.rounds and max(_accuracies(run), default=-1.0) >= goal:  # never trained: before round 1
        return {"rounds": 0.0, "bytes": run.megabytes[0], "seconds": run.last("seconds") or 0.0}
    seconds = 0.0
    for record, megabytes in zip(run.rounds, run.megabytes[1:], strict=True):
        seconds += number(record.get("seconds")) or 0
        accuracy, round_ = number(record.get("mean_accuracy")), number(record.get("round"))
        if accuracy is not None and round_ is not None and accuracy >= goal:
            return {"rounds": round_, "bytes": megabytes, "seconds": seconds}
    return {}
