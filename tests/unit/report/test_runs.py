"""Reading run folders: finished, going on, stopped, damaged, hostile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import write_run, write_small_run

from fedcue.errors import RunFolderError
from fedcue.report.overview import failures
from fedcue.report.runs import find_runs, finished_run, need_runs, read_run


def test_finds_runs_in_folders_and_counts_none_twice(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "one", seed=0)
    write_run(tmp_path / "a" / "deep" / "two", seed=1)
    found = find_runs([tmp_path, tmp_path / "a" / "one"])
    assert sorted(run.path.name for run in found) == ["one", "two"]


def test_no_run_is_said_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"No run in .* config.toml"):
        need_runs([tmp_path])
    with pytest.raises(RunFolderError, match="is not a folder"):
        need_runs([tmp_path / "nowhere"])


def test_tells_finished_running_and_stopped_runs_apart(tmp_path: Path) -> None:
    assert read_run(write_run(tmp_path / "finished")).state == "finished"
    stopped = write_run(tmp_path / "stopped", done=3)
    assert read_run(stopped).state == "stopped"
    (stopped / ".lock").write_text(str(os.getpid()))
    assert read_run(stopped).state == "running"


@pytest.mark.parametrize(
    "name", ["config.toml", "metrics.jsonl", "summary.json", "clients.csv", "analysis.safetensors"]
)
@pytest.mark.parametrize("content", [b"\xff\x00{[", b'{"a": [', b"[1]\n", b"a." * 1_500 + b"a = 1"])
def test_a_damaged_file_damages_one_run_and_not_the_report(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_run(tmp_path / "bad")
    (folder / name).write_bytes(content)
    write_run(tmp_path / "good")
    runs = find_runs([tmp_path])
    states = {run.path.name: run.state for run in runs}
    assert states["good"] == "finished"
    if states["bad"] == "damaged":
        assert failures(runs)[0].where == "bad"
        assert failures(runs)[0].text


def test_tensors_of_a_type_that_numpy_lacks_are_damage(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    header = b'{"head":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\x00")
    with pytest.raises(RunFolderError, match="damaged"):
        _ = read_run(folder).trained


@pytest.mark.parametrize("summary", ["", "[]", '{"mean_accuracy": "1"}', '{"mean_accuracy": NaN}'])
def test_a_damaged_run_is_named(tmp_path: Path, summary: str) -> None:
    folder = write_small_run(tmp_path / "run", 0, [0.5])
    if summary.startswith("{"):
        known = json.loads((folder / "summary.json").read_text())
        summary = json.dumps({**known, **json.loads(summary)})
    (folder / "summary.json").write_text(summary)
    with pytest.raises(RunFolderError, match=r"run is not a finished run .* run it again"):
        finished_run(folder)


@pytest.mark.parametrize(("key", "value"), [("upload_floats", "10"), ("round", None), ("clients", 3)])
def test_a_round_without_its_numbers_is_no_finished_run(tmp_path: Path, key: str, value: Any) -> None:
    folder = write_small_run(tmp_path / "run", 0, [0.5])
    record = json.loads((folder / "metrics.jsonl").read_text()) | {key: value}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(RunFolderError, match=f"run is not a finished run .*{key}="):
        finished_run(folder)


def test_a_run_that_goes_on_is_no_finished_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a finished run"):
        finished_run(write_run(tmp_path / "run", done=3))
