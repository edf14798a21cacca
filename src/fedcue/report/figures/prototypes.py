"""Class prototypes: how well they name the class by block, and how far they drift over the rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcue.report.figures.figure import ROUNDS, Axis, Figure, Panel, Series
from fedcue.report.figures.one_run import block_numbers, pep_first, run_with, source
from fedcue.report.groups import RunGroup
from fedcue.report.run_files import Array
from fedcue.report.runs import RunRecord

TOP = 5
"""Among how many of the nearest prototypes the class is looked for, beside the nearest."""


def prototype_accuracy(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw how well the nearest prototype of the bare backbone names the class, by block."""
    found = run_with(groups, "prototype_top1", "prototype_top5")
    if found is None:
        return None
    label, run = found
    names = [("top 5", "prototype_top5"), ("top 1", "prototype_top1")]
    if len(run.classes) <= TOP:  # whatever is asked, the class is among the nearest
        del names[0]
    best_of = run.analysis[names[0][1]].ravel()
    lines = tuple(
        Series(name, list(range(run.analysis[key].size)), run.analysis[key].ravel().tolist(), slot)
        for slot, (name, key) in enumerate(names)
    )
    best, last = int(np.argmax(best_of)), best_of.size - 1
    where = "at the output of the last block" if best == last else f"at the input of block {best}"
    alt = f"The nearest prototypes name the class best {where}."
    x = Axis(f"input of block ({last}: output of the last)", whole=True)
    panel = Panel("line", x, Axis("accuracy of the nearest prototypes", percent=True), lines)
    caption = f"Bare backbone{_images(run)}. {alt} {source(label, run)}"
    return Figure("prototype-accuracy", "Prototype accuracy by block", (panel,), caption, alt)


def _images(run: RunRecord) -> str:
    """Say how many of the images made the prototypes and were named, if the run tells."""
    counts = run.analysis.get("prototype_images")
    if counts is None or counts.shape != (4,):
        return ""
    known, training, asked, tested = counts.tolist()
    each = known / max(1, len(run.classes))
    return (
        f", prototypes of {known:,} of {training:,} training images ({each:.3g} a class), "
        f"{asked:,} of {tested:,} test images named"
    )


def prototype_drift(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw how far the prototypes turned away from the first ones, by block."""
    for group in pep_first(groups):
        for run in group.runs:
            kept = [(r, t["prototypes"]) for r, t in run.snapshots if "prototypes" in t]
            if len(kept) > 1 and len({p.shape for _, p in kept}) == 1 and kept[0][1].ndim == 3:
                return _drift(group.label, run, kept)
    return None


def _drift(label: str, run: RunRecord, kept: list[tuple[int, Array]]) -> Figure:
    rounds, first = [float(r) for r, _ in kept], kept[0][1]
    turned = np.array([_turn(first, prototypes) for _, prototypes in kept])  # [rounds, L]
    blocks = block_numbers(run, turned.shape[1])
    lines = tuple(
        Series(f"block {block}", rounds, turned[:, i].tolist(), i) for i, block in enumerate(blocks)
    )
    start, end = kept[0][0], kept[-1][0]
    alt = f"Largest drift at round {end}: {turned[-1].max():.3f} (cosine distance to round {start})."
    caption = f"Mean over classes of 1 - cosine similarity to those of round {start}. {source(label, run)}"
    panel = Panel("line", ROUNDS, Axis("cosine distance"), lines)
    return Figure("prototype-drift", "Drift of the prototypes", (panel,), caption, alt)


def _turn(first: Array, later: Array) -> Array:
    """Return the mean cosine distance by block of the classes that have a prototype in both."""
    lengths = np.linalg.norm(first, axis=2) * np.linalg.norm(later, axis=2)  # [L, C]
    cosine = (first * later).sum(2) / np.maximum(lengths, 1e-12)
    held = lengths > 0
    away = np.where(held, np.maximum(1 - cosine, 0), 0)
    return np.asarray(away.sum(1) / np.maximum(held.sum(1), 1))
