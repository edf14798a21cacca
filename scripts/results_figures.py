"""Draw the two figures of docs/results from its tables: accuracy by round, and when mixing pays.

python scripts/results_figures.py docs/results/miniature
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from results import Results, paper_of_run
from results_mixing import WIDTH, Point, mixing
from results_shown import MAIN, PEP_EVEN

from fedcue.report.figures.draw import save
from fedcue.report.figures.figure import Axis, Figure, Panel, Series
from fedcue.report.labels import method_label

TASK = 30, 3, 60
"""Classes, classes of a client and training images of a class in the main table."""

LINES = {  # names of runs, and what the figure calls them
    "cue": "cue (ours; the prior decides at test)",
    "pep": "PEP-FedPT",
    PEP_EVEN: "PEP-FedPT without priors in the mixing",
    "fedvpt_deep": "FedVPT-D",
    "fedvpt": "FedVPT",
}


def by_round(results: Results, table: str = MAIN) -> Figure:
    """Return mean accuracy by round; the title is its message, the legend has the ends and the paper's."""
    series = []
    for slot, (name, label) in enumerate(LINES.items()):
        curve = results.curve(table, name)
        if curve:
            printed, _ = paper_of_run(table, name)
            beside = f", paper {printed:.1f}" if printed else ""
            series.append(_line(curve, f"{label}: {100 * fmean(curve[max(curve)]):.1f}{beside}", slot))
    panel = Panel(
        "line",
        Axis("rounds of 5 clients"),
        Axis("mean accuracy of the clients that train", percent=True),
        tuple(series),
        title=message(results, table),
    )
    return Figure("accuracy-rounds", panel.title, (panel,))


def message(results: Results, table: str) -> str:
    """Return in words what the curves show."""
    ours, theirs = results.curve(table, "pep"), results.curve(table, "fedvpt")
    if not ours or not theirs:
        return "Mean accuracy by round"
    end = fmean(theirs[max(theirs)])
    passed = [number for number in sorted(ours) if fmean(ours[number]) > end]
    lead = 100 * (fmean(ours[max(ours)]) - end)
    if not passed or lead <= 0:
        return f"{method_label('pep')} does not pass {method_label('fedvpt')} here"
    said = (
        f"PEP-FedPT passes FedVPT's last accuracy by round {passed[0]} of {max(theirs)}\n"
        f"and ends {lead:.0f} points above it"
    )
    even = results.curve(table, PEP_EVEN)
    if not even:
        return said
    left = 100 * (fmean(even[max(even)]) - end)
    return f"{said} ({'level' if abs(left) < 1 else f'{left:+.0f}'} without priors in the mixing)"


def _line(curve: dict[int, list[float]], label: str, slot: int) -> Series:
    rounds = sorted(curve)
    means = [fmean(curve[number]) for number in rounds]
    spread = [stdev(curve[number]) if len(curve[number]) > 1 else 0.0 for number in rounds]
    low = [mean - one for mean, one in zip(means, spread, strict=True)]
    high = [mean + one for mean, one in zip(means, spread, strict=True)]
    return Series(label, rounds, means, slot, low, high)


def when_mixing_pays(points: list[Point]) -> Figure:
    """Return PEP-FedPT's gain over FedVPT as one thing changes and the rest is as in the main table."""
    main_classes, main_held, main_images = TASK
    tenth = [one for one in points if one.held * 10 == one.classes and one.images == main_images]
    held = [one for one in points if (one.classes, one.images) == (main_classes, main_images)]
    images = [one for one in points if (one.classes, one.held) == (main_classes, main_held)]
    ways = (
        (f"classes on a ViT of width {WIDTH}; a client holds a tenth", tenth, [one.classes for one in tenth]),
        (f"classes that a client holds, of {main_classes}", held, [one.held for one in held]),
        ("training images of a class", images, [one.images for one in images]),
    )
    panels = [_gains(axis, own, places) for axis, own, places in ways if len(own) > 1]
    return Figure("mixing", "What mixing gains", tuple(panels))


def _gains(axis: str, points: list[Point], places: list[int]) -> Panel:
    bounds = [point.difference.interval or (point.difference.mean,) * 2 for point in points]
    gains = [point.difference.mean for point in points]
    series = Series(
        "PEP-FedPT − FedVPT",
        places,
        gains,
        1,
        [low for low, _ in bounds],
        [high for _, high in bounds],
    )
    return Panel("scatter", Axis(axis), Axis("PEP-FedPT − FedVPT, points"), (series,), title=_said(gains))


def _said(gains: Sequence[float]) -> str:
    """Return in words how a gain changes from one end to the other."""
    return f"From {gains[0]:+.0f} to {gains[-1]:+.0f} points"


def main() -> None:
    """Draw both figures anew."""
    results = Results(Path(sys.argv[1]))
    save(by_round(results), results.folder / f"{MAIN}.png")
    points = mixing(results)
    if len(points) > 1:
        save(when_mixing_pays(points), results.folder / "mixing.png")


if __name__ == "__main__":
    main()
