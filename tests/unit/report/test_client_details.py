"""What the page shows of a single client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.run_folders import groups_in, write_run

from fedcue.report.groups import RunGroup, group_runs
from fedcue.report.page import client_details
from fedcue.report.run_files import Client
from fedcue.report.runs import RunRecord, find_runs


def test_the_details_knows_a_clients_classes_and_confusions(tmp_path: Path) -> None:
    run = find_runs([write_run(tmp_path / "run")])[0]
    found = client_details(group_runs([run]))
    assert found is not None
    client = found["clients"][3]
    assert dict(client["classes"]) == {c: n for c, n in enumerate(run.class_counts[3].tolist()) if n}
    triples = client["confusions"][0]
    assert sum(count for _, _, count in triples) == 18
    right = sum(count for true, predicted, count in triples if true == predicted)
    assert right / 18 == pytest.approx(client["accuracies"][0], abs=1e-5)


def test_the_details_stays_within_its_budget(tmp_path: Path) -> None:
    found = client_details(groups_in(write_run(tmp_path / "run")), budget=2000)
    assert found is not None
    assert len(found["clients"]) == 20
    assert "confusions" in found["clients"][0]
    assert "confusions" not in found["clients"][-1]


def by_hand(label: str, accuracies: list[float | None], predicted: list[int]) -> RunGroup:
    """Return a group of one run: three clients, the last listed first, of whom the second never trains, and five tested images."""
    clients = [
        Client(0, "a", "photo", False, 5, 3, accuracies[0]),
        Client(1, "b", "sketch", True, 4, 2, accuracies[1]),
        Client(2, "c", "sketch", False, 1, 0, None),
    ][::-1]
    run = RunRecord(Path("run"), "finished", {"seed": 7}, clients=clients, model={"classes": ["x", "y", "z"]})
    run.__dict__["analysis"] = {
        "train_class_counts": np.array([[1, 4, 0], [0, 2, 2], [1, 0, 0]]),
        "clients": np.array([0, 0, 0, 1, 1]),
        "labels": np.array([1, 1, 0, 2, 1]),
        "predicted": np.array(predicted),
    }
    return RunGroup("pep", label, (run,))


def test_every_number_of_a_client_is_its_own() -> None:
    groups = [by_hand("one", [0.75, 0.5], [0, 0, 0, 2, 2]), by_hand("two", [0.25, None], [1, 1, 1, 0, 0])]
    found = client_details(groups)
    assert found is not None
    assert (found["classes"], found["series"], found["seed"]) == (["x", "y", "z"], ["one", "two"], 7)
    third, second, first = found["clients"]
    assert first == {
        "id": 0,
        "name": "a",
        "domain": "photo",
        "heldout": False,
        "train": 5,
        "test": 3,
        "classes": [[1, 4], [0, 1]],
        "accuracies": [0.75, 0.25],
        "confusions": [[[0, 0, 1], [1, 0, 2]], [[0, 1, 1], [1, 1, 2]]],
    }
    assert (second["heldout"], second["classes"], second["accuracies"]) == (
        True,
        [[1, 2], [2, 2]],
        [0.5, None],
    )
    assert second["confusions"] == [[[1, 2, 1], [2, 2, 1]], [[1, 0, 1], [2, 0, 1]]]
    assert (third["accuracies"], third["confusions"]) == ([None, None], [[], []])


def test_clients_of_another_federation_are_not_shown_beside_them() -> None:
    same, other = (by_hand(label, [0.5, 0.5], [0] * 5) for label in ("same", "other"))
    other.runs[0].analysis["train_class_counts"] = np.ones((3, 3), int)
    found = client_details([same, other])
    assert found is not None
    assert found["series"] == ["same"]
