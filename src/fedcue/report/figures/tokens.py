"""The cls tokens of test images, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcue.report.figures.figure import Figure, Panel, Series
from fedcue.report.figures.one_run import FIRST, SECOND, how, plane, run_with, source
from fedcue.report.groups import RunGroup
from fedcue.report.labels import shorten
from fedcue.report.run_files import Array
from fedcue.report.runs import number, section


def cls_tokens(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw the cls tokens of test images after an early, a middle and the last block."""
    found = run_with(groups, "cls_tokens", "cls_labels")
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
    each = len(tokens) / len(set(labels.tolist()))
    caption = (
        f"{len(tokens)} test images, {each:.3g} a class, {how(len(tokens))} of each block's output. "
        f"{source(label, run)}"
    )
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
