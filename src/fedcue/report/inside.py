"""Figures of what happens inside: mixing weights, class prompts, cls tokens, prototypes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcue.report.figure import Axis, Figure, Heat, Panel, Series
from fedcue.report.names import shorten
from fedcue.report.project import how, plane
from fedcue.report.runs import Array, RunRecord, number, section
from fedcue.report.series import RunSeries

FIRST, SECOND = Axis("first direction"), Axis("second direction")
SMALLEST_WEIGHT = 0.002
MAX_MAP_CLASSES = 120


def _run_with(series: Sequence[RunSeries], *names: str) -> tuple[str, RunRecord] | None:
    """Return the first run, PEP's before others, whose analysis holds the tensors."""
    ordered = sorted(series, key=lambda one: one.method != "pep")
    found = ((one.label, run) for one in ordered for run in one.runs if all(n in run.analysis for n in names))
    return next(found, None)


def _source(label: str, run: RunRecord) -> str:
    return f"{label}, seed {run.seed}."


def mixing_weights(series: Sequence[RunSeries]) -> Figure | None:
    """Draw the mean weight of each class prompt by the image's true class, over blocks and by block."""
    found = _run_with(series, "mean_mixing_weights")
    if found is None or found[1].analysis["mean_mixing_weights"].ndim != 3:
        return None
    label, run = found
    weights = run.analysis["mean_mixing_weights"][:MAX_MAP_CLASSES, :, :MAX_MAP_CLASSES]  # [C, L, C]
    names = tuple(map(shorten, run.classes))[: len(weights)]
    layers = _layers(run, weights.shape[1])
    panels = [_weights_map(weights.mean(1), names, "mean over blocks")]
    panels += [_weights_map(weights[:, i], names, f"block {layer}") for i, layer in enumerate(layers)]
    own = float(np.mean(np.diagonal(weights.mean(1))))
    alt = f"On average an image puts a weight of {own:.2f} on the prompt of its own class."
    caption = f"A row is the true class of test images, a column a class prompt. {alt} {_source(label, run)}"
    return Figure("mixing-weights", "Which class prompts an image mixes", tuple(panels), caption, alt)


def _layers(run: RunRecord, count: int) -> list[int]:
    layers = section(run.config, "method").get("layers")
    good = isinstance(layers, list) and len(layers) == count and all(isinstance(n, int) for n in layers)
    return list(layers) if good else list(range(count))  # type: ignore[arg-type]


def _weights_map(weights: Array, names: tuple[str, ...], title: str) -> Panel:
    kept = np.argwhere(weights > SMALLEST_WEIGHT)
    cells = [(int(row), int(column), float(weights[row, column])) for row, column in kept]
    heat = Heat(names, names, cells, "mean weight")
    return Panel("heat", Axis("class prompt"), Axis("true class"), heat=heat, title=title)


def mixing_weights_of_classes(series: Sequence[RunSeries], classes: Sequence[int] = (0, 1)) -> Figure | None:
    """Draw the mean weights of the images of a few classes as bars."""
    found = _run_with(series, "mean_mixing_weights")
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
    caption = f"Mean over blocks and over the test images of all clients. {_source(label, run)}"
    return Figure("mixing-weights-classes", title, panels, caption, caption)


def class_prompts(series: Sequence[RunSeries]) -> Figure | None:
    """Draw the trained class prompts in two dimensions."""
    for one in sorted(series, key=lambda one: one.method != "pep"):
        for run in one.runs:
            prompts = run.trained.get("class_prompts")
            if prompts is not None and prompts.ndim == 2 and run.state == "finished":
                return _prompts(one.label, run, prompts)
    return None


def _prompts(label: str, run: RunRecord, prompts: Array) -> Figure:
    names = [shorten(name) for name in run.classes]
    points = Series("class prompts", *plane(prompts), labels=names)
    near = _spread(prompts)
    alt = (
        f"The class prompts have a mean pairwise cosine similarity of {near:.2f} (1: all collapsed into one)."
    )
    caption = f"{how(len(prompts))}, seeded; near means similar. {alt} {_source(label, run)}"
    panel = Panel("scatter", FIRST, SECOND, (points,))
    return Figure("class-prompts", "Class prompts in two dimensions", (panel,), caption, alt)


def _spread(vectors: Array) -> float:
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    count = len(unit)
    return float(((unit @ unit.T).sum() - count) / max(1, count * (count - 1)))


def class_prompts_evolution(series: Sequence[RunSeries]) -> Figure | None:
    """Draw the class prompts of several rounds in one projection."""
    for one in sorted(series, key=lambda one: one.method != "pep"):
        for run in one.runs:
            kept = [(r, t["class_prompts"]) for r, t in run.snapshots if "class_prompts" in t]
            if len(kept) > 1 and len({prompts.shape for _, prompts in kept}) == 1:
                return _evolution(one.label, run, kept)
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
    caption = f"One projection ({how(len(x))}) of all rounds shown. {alt} {_source(label, run)}"
    panel = Panel("scatter", FIRST, SECOND, lines)
    return Figure("class-prompts-evolution", "Class prompts over the rounds", (panel,), caption, alt)


def cls_tokens(series: Sequence[RunSeries]) -> Figure | None:
    """Draw the cls tokens of test images after an early, a middle and the last block."""
    found = _run_with(series, "cls_tokens", "cls_labels")
    if found is None:
        return None
    label, run = found
    tokens, labels = run.analysis["cls_tokens"], run.analysis["cls_labels"]
    if tokens.ndim != 3 or len(tokens) != len(labels) or not len(tokens):
        return None
    depth = max(1, int(number(section(run.model, "setting").get("depth")) or tokens.shape[1] - 1))
    first = depth + 1 - tokens.shape[1]  # the block whose input is at position 0
    outputs = [
        block for block in dict.fromkeys((0, round((depth - 1) * 7 / 11), depth - 1)) if block >= first
    ]
    panels = tuple(_tokens(tokens[:, block + 1 - first], labels, run.classes, block) for block in outputs)
    caption = f"{len(tokens)} test images, {how(len(tokens))} of each block's output. {_source(label, run)}"
    after = ", ".join(map(str, outputs))
    alt = f"cls tokens of {len(tokens)} test images after blocks {after}, coloured by class."
    return Figure("cls-tokens", "cls tokens by block", panels, caption, alt)


def _tokens(tokens: Array, labels: Array, classes: Sequence[str], block: int) -> Panel:
    x, y = (np.array(values) for values in plane(tokens))
    lines = tuple(
        Series(shorten(classes[c]), x[labels == c].tolist(), y[labels == c].tolist(), int(c))
        for c in sorted(set(labels.tolist()))
        if c < len(classes)
    )
    return Panel("scatter", FIRST, SECOND, lines, title=f"after block {block}")


def prototype_accuracy(series: Sequence[RunSeries]) -> Figure | None:
    """Draw how well the nearest prototype of the bare backbone names the class, by block."""
    found = _run_with(series, "prototype_top1", "prototype_top5")
    if found is None:
        return None
    label, run = found
    names = (("top 5", "prototype_top5"), ("top 1", "prototype_top1"))
    lines = tuple(
        Series(name, list(range(run.analysis[key].size)), run.analysis[key].ravel().tolist(), slot)
        for slot, (name, key) in enumerate(names)
    )
    best = int(np.argmax(run.analysis["prototype_top5"].ravel()))
    last = run.analysis["prototype_top5"].size - 1
    where = "at the output of the last block" if best == last else f"at the input of block {best}"
    alt = f"The nearest prototypes name the class best {where}."
    x = Axis(f"input of block ({last}: output of the last)")
    panel = Panel("line", x, Axis("accuracy of the nearest prototypes", percent=True), lines)
    caption = f"Bare backbone, prototypes of a sample of training images. {alt} {_source(label, run)}"
    return Figure("prototype-accuracy", "Prototype accuracy by block", (panel,), caption, alt)


def prototype_drift(series: Sequence[RunSeries]) -> Figure | None:
    """Draw how far the prototypes turned away from the first ones, by block."""
    for one in sorted(series, key=lambda one: one.method != "pep"):
        for run in one.runs:
            kept = [(r, t["prototypes"]) for r, t in run.snapshots if "prototypes" in t]
            if len(kept) > 1 and len({p.shape for _, p in kept}) == 1 and kept[0][1].ndim == 3:
                return _drift(one.label, run, kept)
    return None


def _drift(label: str, run: RunRecord, kept: list[tuple[int, Array]]) -> Figure:
    rounds, first = [float(r) for r, _ in kept], kept[0][1]
    turned = np.array([_turn(first, prototypes) for _, prototypes in kept])  # [rounds, L]
    layers = _layers(run, turned.shape[1])
    lines = tuple(
        Series(f"block {layer}", rounds, turned[:, i].tolist(), i) for i, layer in enumerate(layers)
    )
    start, end = kept[0][0], kept[-1][0]
    alt = f"Largest drift at round {end}: {turned[-1].max():.3f} (cosine distance to round {start})."
    caption = f"Mean over classes of 1 - cosine similarity to those of round {start}. {_source(label, run)}"
    panel = Panel("line", Axis("round"), Axis("cosine distance"), lines)
    return Figure("prototype-drift", "Drift of the prototypes", (panel,), caption, alt)


def _turn(first: Array, later: Array) -> Array:
    """Return the mean cosine distance by block of the classes that have a prototype in both."""
    lengths = np.linalg.norm(first, axis=2) * np.linalg.norm(later, axis=2)  # [L, C]
    cosine = (first * later).sum(2) / np.maximum(lengths, 1e-12)
    held = lengths > 0
    away = np.where(held, np.maximum(1 - cosine, 0), 0)
    return np.asarray(away.sum(1) / np.maximum(held.sum(1), 1))
