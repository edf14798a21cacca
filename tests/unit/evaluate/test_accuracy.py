"""From predictions to the numbers of the tables: mean, worst, percentiles, domains, held-out clients."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from fedcue.clients.host import Prediction
from fedcue.errors import FedcueError
from fedcue.evaluate.accuracy import PERCENTILES, Accuracies, Adaptation, by_domain, summarise
from fedcue.evaluate.curve import on_curve


def roster(heldout=(False, False, False, True, True), domains=("a", "a", "b", "b", "b"), on="test"):
    """Return what accuracies need to know of five clients."""
    clients = len(heldout)
    return SimpleNamespace(
        heldout=np.array(heldout),
        domains=domains,
        names=[f"client-{number}" for number in range(clients)],
        listed=np.arange(clients),
        train_sizes=np.arange(clients) + 100,
        test_sizes=np.array([10, 4, 5, 10, 2]),
        config=SimpleNamespace(evaluation=SimpleNamespace(on=on)),
        __len__=lambda: clients,
    )


CORRECT, TOTAL = np.array([9, 1, 3, 8, 0]), np.array([10, 4, 5, 10, 2])
"""Accuracies 0.9, 0.25, 0.6 of clients that train; 0.8 and 0 of held-out ones."""


def test_mean_and_worst_are_those_of_the_clients_that_train():
    metrics = Accuracies(roster(), CORRECT, TOTAL).metrics()
    assert metrics["mean_accuracy"] == pytest.approx((0.9 + 0.25 + 0.6) / 3)
    assert metrics["worst_accuracy"] == pytest.approx(0.25)


def test_held_out_clients_have_numbers_of_their_own():
    metrics = Accuracies(roster(), CORRECT, TOTAL).metrics()
    assert metrics["heldout_mean_accuracy"] == pytest.approx(0.4)
    assert metrics["heldout_worst_accuracy"] == 0.0
    assert metrics["heldout_percentile_5_accuracy"] == pytest.approx(0.04)


def test_without_held_out_clients_their_numbers_are_none_and_not_zero():
    metrics = Accuracies(roster([False] * 5), CORRECT, TOTAL).metrics()
    assert metrics["heldout_mean_accuracy"] is None
    assert metrics["heldout_worst_accuracy"] is None
    assert metrics["mean_accuracy"] == pytest.approx((0.9 + 0.25 + 0.6 + 0.8 + 0) / 5)


def test_a_client_that_was_not_tested_is_in_no_number():
    metrics = Accuracies(roster(), np.array([9, 0, 3, 8, 0]), np.array([10, 0, 5, 10, 0])).metrics()
    assert metrics["mean_accuracy"] == pytest.approx(0.75)
    assert metrics["worst_accuracy"] == pytest.approx(0.6)
    assert metrics["heldout_mean_accuracy"] == pytest.approx(0.8)


def test_percentiles_are_low_ones_of_5_10_and_15_percent():
    assert PERCENTILES == (5, 10, 15)
    found = summarise(np.arange(101) / 100)
    assert {name: round(value, 9) for name, value in found.items()} == {
        "mean_accuracy": 0.5,
        "worst_accuracy": 0.0,
        "percentile_5_accuracy": 0.05,
        "percentile_10_accuracy": 0.10,
        "percentile_15_accuracy": 0.15,
    }


def test_a_percentile_between_two_clients_lies_on_the_line_between_them():
    found = summarise(np.array([1.0, 0.0]))
    assert found["percentile_15_accuracy"] == pytest.approx(0.15)


def test_a_summary_of_nobody_is_empty():
    assert summarise(np.array([])) == {}


def test_a_domain_is_averaged_over_clients_and_pooled_over_images():
    found = by_domain(["b", "a", "a"], np.array([0.5, 0.9, 0.25]), np.array([2, 10, 4]))
    assert list(found) == ["a", "b"]
    assert found["a"]["client_mean_accuracy"] == pytest.approx(0.575)
    assert found["a"]["pooled_accuracy"] == pytest.approx(10 / 14)
    assert found["b"] == {"client_mean_accuracy": 0.5, "pooled_accuracy": 0.5}


def test_domains_are_those_of_the_clients_that_train():
    found = Accuracies(roster(), CORRECT, TOTAL).domains()
    assert found["a"]["pooled_accuracy"] == pytest.approx(10 / 14)
    assert found["b"]["pooled_accuracy"] == pytest.approx(3 / 5)
    assert Accuracies(roster(domains=("a",) * 5), CORRECT, TOTAL).domains() == {}


def test_predictions_are_counted_by_client():
    prediction = Prediction(
        images=np.arange(5),
        clients=np.array([1, 0, 1, 2, 1]),
        labels=np.array([3, 1, 2, 0, 1]),
        predicted=np.array([3, 0, 2, 0, 3]),
    )

    class Five:
        def __len__(self):
            return 5

    found = Accuracies.of(Five(), prediction, {})
    assert found.correct.tolist() == [0, 2, 1, 0, 0]
    assert found.total.tolist() == [1, 3, 1, 0, 0]
    assert found.accuracies[:3].tolist() == pytest.approx([0, 2 / 3, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of nothing divided by nothing
        assert np.isnan(found.accuracies[3:]).all()


def test_if_nobody_that_trains_was_tested_the_run_ends_with_the_reasons():
    nothing = np.zeros(5, dtype=np.int64)
    only_heldout = np.array([0, 0, 0, 10, 2])
    for total in (nothing, only_heldout):
        with pytest.raises(FedcueError, match=r"No client that trains could be tested \(client 1: cold\)"):
            Accuracies(roster(), nothing, total, missing={1: "cold"}).checked()
    told = Accuracies(roster(), CORRECT, np.array([10, 0, 5, 10, 2]), missing={1: "cold"})
    assert told.checked() is told
    assert told.untested() == [{"client": 1, "reason": "cold"}]


@pytest.mark.parametrize("on", ["test", "validation"])
def test_a_line_for_each_client_says_on_what_it_was_tested(on):
    rows = list(Accuracies(roster(on=on), CORRECT[:5], np.array([10, 4, 0, 10, 2])).client_rows())
    assert rows[0] == {
        "id": 0,
        "name": "client-0",
        "domain": "a",
        "heldout": "false",
        "train_size": 100,
        f"{on}_size": 10,
        f"{on}_accuracy": "0.900000",
    }
    assert rows[2][f"{on}_accuracy"] == ""
    assert rows[2][f"{on}_size"] == (5 if on == "test" else 0)
    assert [row["heldout"] for row in rows] == ["false"] * 3 + ["true"] * 2


def test_a_client_with_one_test_image_counts_and_one_without_does_not():
    told = Accuracies(roster(), np.array([1, 0, 3, 1, 0]), np.array([1, 0, 5, 1, 0]))
    metrics = told.metrics()
    assert metrics["mean_accuracy"] == pytest.approx(0.8)
    assert metrics["heldout_mean_accuracy"] == 1
    assert told.domains()["a"] == {"client_mean_accuracy": 1, "pooled_accuracy": 1}


def test_of_many_clients_that_failed_three_are_named():
    nothing = np.zeros(5, dtype=np.int64)
    missing = {client: f"reason {client}" for client in range(4)}
    told = r"\(client 0: reason 0; client 1: reason 1; client 2: reason 2\)"
    with pytest.raises(FedcueError, match=told):
        Accuracies(roster(), nothing, nothing, missing=missing).checked()


def test_what_clients_trained_for_the_test_alone_stands_beside_the_same_test_without_it():
    """There are no held-out clients: of what is not known nothing is said."""
    nobody = roster([False] * 5)
    before = Accuracies(nobody, np.array([5, 1, 3, 8, 0]), TOTAL)
    metrics = Accuracies(nobody, CORRECT, TOTAL, adaptation=Adaptation(before, images=77)).metrics()
    assert metrics["mean_accuracy"] == pytest.approx((0.9 + 0.25 + 0.6 + 0.8 + 0) / 5)
    assert metrics["unadapted_mean_accuracy"] == pytest.approx((0.5 + 0.25 + 0.6 + 0.8 + 0) / 5)
    assert metrics["adaptation_images"] == 77
    assert metrics["heldout_mean_accuracy"] is None
    assert "unadapted_heldout_mean_accuracy" not in metrics
    assert "adaptation_images" not in before.metrics()


def test_a_curve_shows_the_last_test_as_all_tests_before_it_were_made():
    assert on_curve({"mean_accuracy": 0.5}) == 0.5
    assert on_curve({"mean_accuracy": 0.5, "unadapted_mean_accuracy": 0.4}) == 0.4
    assert on_curve({"worst_accuracy": 0.1, "unadapted_worst_accuracy": 0.2}, "worst_accuracy") == 0.2
    assert on_curve({}) is None
