"""From many dimensions to two."""

from __future__ import annotations

import numpy as np
import pytest

from fedcue.report.figures import one_run
from fedcue.report.figures.one_run import MOST, how, plane


def test_a_projection_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(12, 5))
    first = plane(vectors)
    monkeypatch.setattr(one_run, "_KNOWN", {})
    assert plane(vectors) == first


def test_few_points_are_placed_by_their_principal_components() -> None:
    assert (how(3), how(4), how(MOST), how(MOST + 1)) == (
        "principal components",
        "t-SNE",
        "t-SNE",
        "principal components",
    )
    x, y = plane(np.array([[0.0, 0.0, 1.0], [3.0, 0.0, 1.0], [6.0, 0.0, 1.0]]))
    assert sorted(map(abs, x)) == pytest.approx([0, 3, 3])
    assert y == pytest.approx([0, 0, 0], abs=1e-6)


def test_points_that_are_all_the_same_are_placed_without_a_complaint() -> None:
    assert plane(np.ones((6, 4))) == ([0.0] * 6, [0.0] * 6)
