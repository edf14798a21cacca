"""Reading run folders: finished, going on, stopped, damaged, hostile."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import write_run, write_small_run

from fedcue.errors import RunFolderError
from fedcue.report.overview import failures
from fedcue.report.run_files import Client, client_rows
from fedcue.report.runs import RunRecord, find_runs, finished_run, need_runs, read_run


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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("clients.csv", "id,name\n1," + "a" * 2**25),  # more than a cell of a table may hold
        ("config.toml", "seed = inf\n"),
        ("config.toml", "rounds = inf\n"),
    ],
)
def test_a_cell_too_large_and_a_number_that_is_none_are_damage(
    tmp_path: Path, name: str, content: str
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).write_text(content)
    assert read_run(folder).state == "damaged"
    with pytest.raises(RunFolderError, match="not a finished run"):
        finished_run(folder)


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


def test_a_run_that_goes_on_has_the_newest_number_there_is() -> None:
    rounds = [{"mean_accuracy": 0.1}, {"mean_accuracy": 0.3}, {"mean_accuracy": None}, {"train_loss": 2.0}]
    going = RunRecord(Path("run"), "running", rounds=rounds)
    assert going.last("mean_accuracy") == 0.3
    assert replace(going, summary={"mean_accuracy": 0.9}).last("mean_accuracy") == 0.9
    assert replace(going, summary={"rounds": 4}).last("mean_accuracy") is None


@pytest.mark.parametrize(("every", "rounds"), [(0, 20), (1, 1), (5, 5), (None, 1)])
def test_rounds_between_two_tests_are_those_of_the_settings(every: int | None, rounds: int) -> None:
    config = {"rounds": 20, "evaluation": {} if every is None else {"every": every}}
    assert RunRecord(Path("run"), "finished", config).tested_every == rounds


def test_domains_are_means_over_clients_and_no_pooled_ones() -> None:
    summary = {"domains": {"a": {"client_mean_accuracy": 0.25, "pooled_accuracy": 0.75}}, "untested": [1, 2]}
    run = RunRecord(Path("run"), "finished", summary=summary)
    assert (run.domains, run.untested) == ({"a": 0.25}, 2)
    assert (replace(run, summary={}).domains, replace(run, summary={}).untested) == ({}, 0)


def test_only_a_run_with_rounds_can_have_reached_a_target_at_an_unknown_time() -> None:
    again = RunRecord(Path("run"), "finished", summary={"tested_again": {}}, rounds=[{"round": 1}])
    assert again.tested_again
    assert not replace(again, rounds=[]).tested_again
    assert not replace(again, summary={}).tested_again


def test_a_client_without_an_accuracy_has_none_and_validation_images_are_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text(
        "id,name,domain,heldout,train_size,validation_size,validation_accuracy\n3,c,d,true,9,8,\n4,e,,false,7,6,0.5\n"
    )
    assert client_rows(tmp_path / "clients.csv") == [
        Client(3, "c", "d", True, 9, 8, None),
        Client(4, "e", "", False, 7, 6, 0.5),
    ]
