"""What a finished run says of itself: totals, its end, what a reader must know, its model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.tables import roster_with

from fedcue.config.layers import load
from fedcue.rounds.engine import Insight
from fedcue.rounds.result import Result, describe_model, of_the_end, over_rounds

TRAFFIC = ("upload_floats", "download_floats", "upload_bytes", "download_bytes")


def rounds() -> list[dict[str, Any]]:
    """Return three rounds whose four kinds of traffic differ, and of which two were tested."""
    records = [
        {"round": number, **{name: number * 10**place for place, name in enumerate(TRAFFIC)}}
        for number in (1, 2, 3)
    ]
    records[0]["mean_accuracy"], records[2]["mean_accuracy"] = 0.75, 0.25
    return records


def test_totals_are_sums_over_all_rounds_each_of_its_own_kind() -> None:
    found = over_rounds(load("default"), rounds())
    assert found == {
        "last_rounds_mean_accuracy": 0.5,
        "total_upload_floats": 6,
        "total_download_floats": 60,
        "total_upload_bytes": 600,
        "total_download_bytes": 6000,
    }


def test_the_best_round_is_named_on_validation_images_alone() -> None:
    found = over_rounds(load("default", ["evaluation.on=validation"]), rounds())
    assert found["best_validation"] == {"round": 1, "mean_accuracy": 0.75}


def test_a_run_without_rounds_has_sent_nothing_in_them() -> None:
    found = over_rounds(load("default"), [])
    assert found["last_rounds_mean_accuracy"] is None
    assert [found[f"total_{name}"] for name in TRAFFIC] == [0, 0, 0, 0]


@pytest.mark.parametrize("untested", [[], [{"client": 3, "reason": "gone"}]])
def test_the_end_names_who_could_not_be_tested(untested: list[dict[str, Any]]) -> None:
    accuracies: Any = SimpleNamespace(
        metrics=lambda: {"mean_accuracy": 0.5}, domains=lambda: {"a": {}}, untested=lambda: untested
    )
    expected = {"mean_accuracy": 0.5, "domains": {"a": {}}}
    assert of_the_end(accuracies) == ({**expected, "untested": untested} if untested else expected)


def test_a_reader_is_told_of_an_early_end_of_untested_clients_and_of_a_last_training() -> None:
    summary = {
        "mean_accuracy": 0.5,
        "rounds": 4,
        "ended_early": "nothing got better",
        "untested": [{"client": number} for number in range(12)],
        "unadapted_mean_accuracy": 0.25,
        "unadapted_worst_accuracy": 0.125,
        "adaptation_images": 1234,
    }
    result = Result(Path("run"), summary, [])
    assert result.mean_accuracy == 0.5
    assert result.warnings == [
        "for this test alone each client trained once more (1,234 images); without that: mean accuracy 25.0%, "
        "worst client 12.5%",
        "ended after round 4: nothing got better",
        "12 clients could not be tested, left out of the numbers: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9",
    ]
    assert Result(Path("run"), {"mean_accuracy": 0.5, "rounds": 4}, []).warnings == []


def test_a_model_is_described_with_the_priors_that_are_known_and_what_estimates_others() -> None:
    roster = roster_with("method=fedvpt", "seed=5", "evaluation.temperature=2.5")
    insight = Insight(class_priors={3: np.array([1 / 3, 2 / 3, *[0.0] * 8])}, concentration=0.7)
    found = describe_model(roster, 9, insight)
    assert (found["rounds"], found["seed"], found["method"]["name"]) == (9, 5, "fedvpt")
    assert found["classes"] == [str(number) for number in range(10)]
    assert found["unlabelled"] == {"concentration": 0.7, "temperature": 2.5}
    assert found["clients"]["3"] == {"name": "client-3", "class_priors": [0.33333333, 0.66666667, *[0.0] * 8]}
    assert found["clients"]["4"] == {"name": "client-4"}
    assert len(found["clients"]) == 20
    assert found["image_size"] == roster.architecture.image_size
    assert found["setting"] == vars(roster.sizes)
