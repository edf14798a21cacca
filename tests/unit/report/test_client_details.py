"""What the page shows of a single client."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.run_folders import groups_in, write_run

from fedcue.report.client_details import client_details
from fedcue.report.groups import group_runs
from fedcue.report.runs import find_runs


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
