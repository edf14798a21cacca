"""The last test of methods whose clients train for it, and what is said of failures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedcue.evaluate.accuracy import Accuracies
from fedcue.rounds import engine
from fedcue.rounds.engine import Failure, reasons
from fedcue.types import ServerState


def last_test(adapts: bool, last: bool) -> tuple[Accuracies, list[bool]]:
    """Return the accuracies of three clients, of whom the second could not be tested, and what was asked."""
    asked: list[bool] = []
    roster: Any = SimpleNamespace(
        method=SimpleNamespace(adapts=lambda: adapts),
        train_sizes=np.array([10, 100, 1000]),
        heldout=np.zeros(3, dtype=bool),
        config=SimpleNamespace(training=SimpleNamespace(epochs=5)),
    )

    def evaluate(state: ServerState, memories: object, final: bool) -> Accuracies:
        asked.append(final)
        return Accuracies(roster, np.array([4, 0, 2]) if final else np.array([3, 0, 1]), np.array([4, 0, 4]))

    network: Any = SimpleNamespace(roster=roster, evaluate=evaluate)
    return engine.tested(network, ServerState(7, {}), {}, last), asked


def test_who_trains_for_the_last_test_alone_is_tested_without_it_too_and_its_images_are_counted() -> None:
    found, asked = last_test(adapts=True, last=True)
    assert asked == [True, False]
    metrics = found.metrics()
    assert metrics["mean_accuracy"] == pytest.approx(0.75)
    assert metrics["unadapted_mean_accuracy"] == pytest.approx(0.5)
    assert metrics["unadapted_worst_accuracy"] == pytest.approx(0.25)
    assert metrics["adaptation_images"] == 5 * (10 + 1000)
    assert "unadapted_heldout_mean_accuracy" not in metrics


@pytest.mark.parametrize(("adapts", "last"), [(True, False), (False, True), (False, False)])
def test_all_other_tests_are_made_once(adapts: bool, last: bool) -> None:
    found, asked = last_test(adapts, last)
    assert asked == [last]
    assert found.adaptation is None


def test_the_first_three_failures_are_told_with_their_reasons() -> None:
    assert reasons([]) == ""
    told = reasons([Failure(number, f"r{number}") for number in (4, 2, 9, 1)])
    assert told == " (client 4: r4; client 2: r2; client 9: r9)"
