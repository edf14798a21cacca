"""The page while runs go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.run_folders import round_record, write_run

from fedcue.errors import RunFolderError
from fedcue.report import live
from fedcue.report.live import Following, serve
from fedcue.report.runs import RunRecord, read_run


def test_only_a_run_that_went_on_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "a", done=3)
    write_run(tmp_path / "b", "fedvpt", done=3)
    read: list[str] = []

    def reading(path: Path) -> RunRecord:
        read.append(path.name)
        return read_run(path)

    monkeypatch.setattr(live, "read_run", reading)
    following = Following(tmp_path)
    first = following.page()
    assert following.page() is first
    assert sorted(read) == ["a", "b"]
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(round_record(4, "pep", 0, 0.9)) + "\n")
    assert "4/20" in following.page()
    assert read[2:] == ["a"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a folder. Give the folder that holds the runs"):
        serve(tmp_path / "nowhere", "127.0.0.1", 8765, lambda: pytest.fail("not ready"))
