"""Which run a figure of a single run shows, how its caption names it, and many dimensions in a plane."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from fedcue.report.figures.figure import Axis
from fedcue.report.groups import RunGroup
from fedcue.report.run_files import Array
from fedcue.report.runs import RunRecord, section


def pep_first(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the groups, those of PEP before others."""
    return sorted(groups, key=lambda group: group.method != "pep")


def run_with(groups: Sequence[RunGroup], *names: str) -> tuple[str, RunRecord] | None:
    """Return the first run, PEP's before others, whose analysis holds the tensors."""
    for group in pep_first(groups):
        for run in group.runs:
            if all(name in run.analysis for name in names):
                return group.label, run
    return None


def source(label: str, run: RunRecord) -> str:
    """Return the sentence that says which run a figure shows."""
    return f"{label}, seed {run.seed}."


def block_numbers(run: RunRecord, count: int) -> list[int]:
    """Return the blocks of a tensor that has one row for each block with a mixed prompt."""
    blocks = section(run.config, "method").get("layers")
    if isinstance(blocks, list) and len(blocks) == count and all(isinstance(n, int) for n in blocks):
        return blocks
    return list(range(count))


FIRST, SECOND = Axis("first direction"), Axis("second direction")
"""The axes of a projection; they have no unit."""


_KNOWN: dict[tuple[bytes, tuple[int, ...]], tuple[list[float], list[float]]] = {}


_LIMIT = 64


FEWEST, MOST = 4, 1000
"""Points between which t-SNE says something and takes seconds."""


def plane(vectors: Array) -> tuple[list[float], list[float]]:
    """Return two coordinates of each vector: seeded t-SNE, or principal components where it would not do.

    The result is remembered: a page that updates itself computes it once.
    """
    data = np.ascontiguousarray(np.nan_to_num(vectors), dtype=np.float32)
    key = (hashlib.sha256(data.tobytes()).digest(), data.shape)
    if key not in _KNOWN:
        if len(_KNOWN) >= _LIMIT:
            _KNOWN.clear()
        points = _project(data)
        _KNOWN[key] = (points[:, 0].tolist(), points[:, 1].tolist())
    return _KNOWN[key]


def how(points: int) -> str:
    """Return the name of the projection used for so many points."""
    return "t-SNE" if FEWEST <= points <= MOST else "principal components"


def _project(data: Array) -> Array:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # many threads on few points spend their time waiting for each other
        if how(len(data)) != "t-SNE" or min(data.shape) < 2 or not np.ptp(data, axis=0).any():
            return _principal(data)
        perplexity = min(30.0, max(1.5, (len(data) - 1) / 3))
        tsne = TSNE(perplexity=perplexity, init="pca", max_iter=500, random_state=0)
        return np.asarray(tsne.fit_transform(data), dtype=float)


def _principal(data: Array) -> Array:
    centred = data - data.mean(0)
    _, _, directions = np.linalg.svd(centred.T @ centred)
    out = np.zeros((len(data), 2))
    out[:, : len(directions[:2])] = centred @ directions[:2].T
    return out
