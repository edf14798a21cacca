"""The mean of the last rounds stands beside the last round."""

from __future__ import annotations

import pytest

from fedcue.rounds.result import last_rounds_mean


def test_it_is_the_mean_of_the_last_ten_rounds_that_were_tested() -> None:
    rounds = [{"mean_accuracy": number / 100} for number in range(15)]
    rounds[3:3] = [{"mean_accuracy": None}] * 20  # type: ignore[list-item]
    assert last_rounds_mean(rounds) == pytest.approx(0.095)
    assert last_rounds_mean([{"mean_accuracy": 0.5}, {}]) == 0.5
    assert last_rounds_mean([{}]) is None
