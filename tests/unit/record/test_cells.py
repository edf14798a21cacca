"""Names from data are no formulas in a spreadsheet, and folders of runs do not meet."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedcue.config.layers import load
from fedcue.record.folder import RunFolder
from fedcue.rounds.resume import default_folder


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_a_name_that_is_a_formula_is_written_as_text(tmp_path: Path, name: str) -> None:
    RunFolder(tmp_path).write_clients([{"id": 0, "name": name, "domain": "plain", "score": -0.5}])
    with open(tmp_path / "clients.csv", newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row == {"id": "0", "name": f"'{name}", "domain": "plain", "score": "-0.5"}


def test_runs_started_in_the_same_second_get_folders_of_their_own() -> None:
    config = load("default", [])
    assert len({default_folder(config) for _ in range(20)}) == 20
