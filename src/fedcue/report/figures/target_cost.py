"""What a target accuracy costs in rounds, traffic and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from fedcue.report.cost import best_accuracy, cost_to_target
from fedcue.report.figures.figure import Axis, Figure, Panel, Series
from fedcue.report.groups import RunGroup

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
