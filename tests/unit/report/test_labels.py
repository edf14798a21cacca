"""Names and numbers as people read them."""

from __future__ import annotations

from fedcue.report.labels import _MAX_LENGTH, compact, setting_label, shorten, value_label


def test_short_numbers() -> None:
    assert [compact(n) for n in (0, 12.345, 999.6, 384_768, 7.7e6, 2e12)] == [
        "0", "12.3", "1 k", "385 k", "7.7 M", "2e+03 G",
    ]  # fmt: skip


def test_numbers_change_their_unit_where_three_digits_would_round_up() -> None:
    assert [compact(n) for n in (999.4, 999.5, 999_499, 999_500, 999.5e6, -1500)] == [
        "999", "1 k", "999 k", "1 M", "1 G", "-1.5 k",
    ]  # fmt: skip


def test_settings_and_values_are_named_as_people_read_them() -> None:
    assert [setting_label(key) for key in ("method.prompt_init", "partition.name", "training.lr", "rounds")] == [
        "prompt init", "partition.name", "training.lr", "rounds",
    ]  # fmt: skip
    assert [value_label(value) for value in ([4, 5], [], 0.10, None, True, "a")] == [
        "4-5", "none", "0.1", "default", "True", "a",
    ]  # fmt: skip
    assert shorten("x" * _MAX_LENGTH) == "x" * _MAX_LENGTH
    assert shorten("x" * (_MAX_LENGTH + 1)) == "x" * (_MAX_LENGTH - 1) + "…"
