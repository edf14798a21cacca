"""Inside PEP-FedPT: which class prompts an image mixes, and how the class prompts lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcue.report.figures.figure import Axis, Figure, Heat, Panel, Series
from fedcue.report.figures.one_run import (
    FIRST,
    SECOND,
    block_numbers,
    how,
    pep_first,
    plane,
    run_with,
    source,
)
from fedcue.report.groups import RunGroup
from fedcue.report.labels import shorten
from fedcue.report.run_files import Array
from fedcue.report.runs import RunRecord

_SMALLEST_WEIGHT = 0.002
_MAX_MAP_CLASSES = 120


def mixing_weights(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw the mean weight of each class prompt by the image's true class, over blocks and by block."""
    found = run_with(groups, "mean_mixing_weights")
    if found is None or found[1].analysis["mean_mixing_weights"].ndim != 3:
        return None
    label, run = found
    weights = run.analysis["mean_mixing_weights"][:_MAX_MAP_CLASSES, :, :_MAX_MAP_CLASSES]  # [C, L, C]
    names = tuple(map(shorten, run.classes))[: len(weights)]
    blocks = block_numbers(run, weights.shape[1])
    panels = [_weights_map(weights.mean(1), names, "mean over blocks")]
    panels += [_weights_map(weights[:, i], names, f"block {block}") for i, block in enumerate(blocks)]
    own = float(np.mean(np.diagonal(weights.mean(1))))
    alt = f"On average an image puts a weight of {own:.2f} on the prompt of its own class."
    caption = f"A row is the true class of test images, a column a class prompt. {alt} {source(label, run)}"
    return Figure("mixing-weights", "Which class prompts an image mixes", tuple(panels), caption, alt)


def _weights_map(weights: Array, names: tuple[str, ...], title: str) -> Panel:
    kept = np.argwhere(weights > _SMALLEST_WEIGHT)
    cells = [(int(row), int(column), float(weights[row, column])) for row, column in kept]
    heat = Heat(names, names, cells, "mean weight")
    return Panel("heat", Axis("class prompt"), Axis("true class"), heat=heat, title=title)


def mixing_weights_of_classes(groups: Sequence[RunGroup], classes: Sequence[int] = (0, 1)) -> Figure | None:
    """Draw the mean weights of the images of a few classes as bars."""
    found = run_with(groups, "mean_mixing_weights")
    if found is None or found[1].analysis["mean_mixing_weights"].ndim != 3:
        return None
    label, run = found
    weights = run.analysis["mean_mixing_weights"].mean(1)
    names = tuple(map(shorten, run.classes))
    axis = Axis("class prompt", categories=names)
    panels = tuple(
        Panel(
            "bar", axis, Axis("mean weight"),
            (Series(f"images of {names[c]}", list(range(len(names))), weights[c].tolist(), i),),
            title=f"images of {names[c]}",
        )
        for i, c in enumerate(classes)
        if c < len(weights)
    )  # fmt: skip
    title = "Mixing weights of the images of a class"
    caption = f"Mean over blocks and over the test images of all clients. {source(label, run)}"
    return Figure("mixing-weights-classes", title, panels, caption, caption)


def class_prompts(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw the trained class prompts in two dimensions."""
    for group in pep_first(groups):
        for run in group.runs:
            prompts = run.trained.get("class_prompts")
            if prompts is not None and prompts.ndim == 2 and run.state == "finished":
                return _prompts(group.label, run, prompts)
    return None


def _prompts(label: str, run: RunRecord, prompts: Array) -> Figure:
    names = [shorten(name) for name in run.classes]
    points = Series("class prompts", *plane(prompts), labels=names)
    near = _spread(prompts)
    alt = (
        f"The class prompts have a mean pairwise cosine similarity of {near:.2f} (1: all collapsed into one)."
    )
    caption = f"{how(len(prompts))}, seeded; near means similar. {alt} {source(label, run)}"
    panel = Panel("scatter", FIRST, SECOND, (points,))
    return Figure("class-prompts", "Class prompts in two dimensions", (panel,), caption, alt)


def _spread(vectors: Array) -> float:
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    count = len(unit)
    return float(((unit @ unit.T).sum() - count) / max(1, count * (count - 1)))


def class_prompts_evolution(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw the class prompts of several rounds in one projection."""
    for group in pep_first(groups):
        for run in group.runs:
            kept = [(r, t["class_prompts"]) for r, t in run.snapshots if "class_prompts" in t]
            if len(kept) > 1 and len({prompts.shape for _, prompts in kept}) == 1:
                return _evolution(group.label, run, kept)
    return None


def _evolution(label: str, run: RunRecord, kept: list[tuple[int, Array]]) -> Figure:
    x, y = plane(np.concatenate([prompts for _, prompts in kept]))
    names, count = [shorten(name) for name in run.classes], len(kept[0][1])
    lines = tuple(
        Series(f"round {r}", x[i * count : (i + 1) * count], y[i * count : (i + 1) * count], i, labels=names)
        for i, (r, _) in enumerate(kept)
    )
    near = ", ".join(f"round {r} {_spread(prompts):.2f}" for r, prompts in kept)
    alt = f"Mean pairwise cosine similarity of the class prompts: {near}."
    caption = f"One projection ({how(len(x))}) of all rounds shown. {alt} {source(label, run)}"
    panel = Panel("scatter", FIRST, SECOND, lines)
    return Figure("class-prompts-evolution", "Class prompts over the rounds", (panel,), caption, alt)
