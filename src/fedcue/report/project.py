"""From many dimensions to two, always the same way."""

from __future__ import annotations

import hashlib

import numpy as np

from fedcue.report.runs import Array

_KNOWN: dict[tuple[bytes, tuple[int, ...]], tuple[list[float], list[float]]] = {}
_LIMIT = 64


def plane(vectors: Array) -> tuple[list[float], list[float]]:
    """Return two coordinates of each vector: seeded t-SNE from the principal components.

    The result is remembered, so that a page that updates itself computes it once.
    """
    data = np.ascontiguousarray(np.nan_to_num(vectors), dtype=np.float32)
    key = (hashlib.sha256(data.tobytes()).digest(), data.shape)
    if key not in _KNOWN:
        if len(_KNOWN) >= _LIMIT:
            _KNOWN.clear()
        points = _tsne(data)
        _KNOWN[key] = (points[:, 0].tolist(), points[:, 1].tolist())
    return _KNOWN[key]


def _tsne(data: Array) -> Array:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    centred = data - data.mean(0)
    if len(data) < 4 or min(data.shape) < 2 or not np.abs(centred).max() > 0:
        out = np.zeros((len(data), 2))
        out[:, : min(2, data.shape[1])] = centred[:, :2]
        return out
    perplexity = min(30.0, max(1.5, (len(data) - 1) / 3))
    with threadpool_limits(1):  # many threads on few points spend their time waiting for each other
        projected = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(data)
    return np.asarray(projected, dtype=float)
