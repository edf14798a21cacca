"""Numbers of things in words."""

from __future__ import annotations

import pytest

from fedcue.errors import many


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((0, "client"), "0 clients"),
        ((1, "client"), "1 client"),
        ((2_000, "client"), "2,000 clients"),
        ((1, "class", "classes"), "1 class"),
        ((7, "class", "classes"), "7 classes"),
    ],
)
def test_one_thing_is_not_many(given: tuple[int, str], text: str) -> None:
    assert many(*given) == text
