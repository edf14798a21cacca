"""The embedded digits."""

from __future__ import annotations

from fedcue.data.readers.digits import Digits


def test_digits_are_scaled_to_eight_bits() -> None:
    dataset = Digits().load(0)
    assert dataset.images.open(0).mode == "L"
    brightest = max(max(dataset.images.content(index)) for index in range(50))
    assert brightest == 255
