"""Names and numbers as people read them."""

from __future__ import annotations

from fedcue.report.labels import compact


def test_short_numbers() -> None:
    assert [compact(n) for n in (0, 12.345, 999.6, 384_768, 7.7e6, 2e12)] == [
        "0", "12.3", "1 k", "385 k", "7.7 M", "2e+03 G",
    ]  # fmt: skip
