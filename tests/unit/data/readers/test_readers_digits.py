"""The embedded digits."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedcue.data.readers.digits import Digits


def test_they_are_what_scikit_learn_gives_and_it_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    bunch = load_digits()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # importing it fails
    found = Digits().read()
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    assert [found.images.content(index) for index in range(len(pixels))] == [one.tobytes() for one in pixels]
    assert np.array_equal(found.labels, bunch.target)
    assert found.classes == tuple(str(name) for name in bunch.target_names)
    assert not found.is_test.any()


def test_digits_are_scaled_to_eight_bits() -> None:
    dataset = Digits().load(0)
    assert dataset.images.open(0).mode == "L"
    brightest = max(max(dataset.images.content(index)) for index in range(50))
    assert brightest == 255
