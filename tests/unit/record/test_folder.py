"""The run folder: what is written is what is read, in one piece, and goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedcue.errors import RunFolderError
from fedcue.foreign import read_toml
from fedcue.record.files import write_bytes, write_tensors
from fedcue.record.folder import RunFolder, read_metrics, read_summary
from fedcue.types import ClientMemory


def with_rounds(folder: Path, count: int) -> RunFolder:
    """Return a run folder with so many rounds."""
    made = RunFolder(folder)
    for number in range(1, count + 1):
        made.append_metrics({"round": number})
    return made


def test_rounds_are_appended_counted_and_summed_up(tmp_path: Path) -> None:
    made = with_rounds(tmp_path, 3)
    data = (tmp_path / "metrics.jsonl").read_bytes()
    assert read_metrics(tmp_path) == made.read_metrics() == [{"round": 1}, {"round": 2}, {"round": 3}]
    assert made.metrics_bytes == len(data)
    assert made.metrics_digest == hashlib.sha256(data).hexdigest()


def test_rounds_after_a_checkpoint_are_cut_off_and_later_ones_follow_it(tmp_path: Path) -> None:
    two = with_rounds(tmp_path, 2)
    length, digest = two.metrics_bytes, two.metrics_digest
    two.append_metrics({"round": 3, "of": "before"})
    again = RunFolder(tmp_path)
    again.truncate_metrics(length, digest)
    assert again.metrics_bytes == length
    again.append_metrics({"round": 3, "of": "now"})
    assert read_metrics(tmp_path)[1:] == [{"round": 2}, {"round": 3, "of": "now"}]
    data = (tmp_path / "metrics.jsonl").read_bytes()
    assert (again.metrics_bytes, again.metrics_digest) == (len(data), hashlib.sha256(data).hexdigest())


def test_rounds_that_were_changed_meanwhile_are_not_gone_on_with(tmp_path: Path) -> None:
    made = with_rounds(tmp_path, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace("2", "7"))
    with pytest.raises(RunFolderError, match="is not what its checkpoint remembers"):
        RunFolder(tmp_path).truncate_metrics(made.metrics_bytes, made.metrics_digest)
    assert read_metrics(tmp_path) == [{"round": 1}, {"round": 7}], "and nothing is cut off"


def test_a_line_cut_short_is_no_round_and_a_line_that_is_no_object_is_damage(tmp_path: Path) -> None:
    with_rounds(tmp_path, 1)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"round": 2')
    assert read_metrics(tmp_path) == [{"round": 1}]
    path.write_text("[]\n")
    with pytest.raises(RunFolderError, match="each line must be an object"):
        read_metrics(tmp_path)


def test_there_is_something_to_go_on_from_once_a_round_is_written(tmp_path: Path) -> None:
    made = RunFolder(tmp_path)
    made.write_config({"seed": 3})
    assert not made.begun
    made.append_metrics({"round": 1})
    assert made.begun


def test_the_settings_stand_beside_the_versions_they_ran_with(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_config({"seed": 3, "method": {"name": "pep"}})
    found = read_toml(tmp_path / "config.toml")
    assert (found["seed"], found["method"]) == (3, {"name": "pep"})
    assert set(found["environment"]) == {"fedcue", "torch", "numpy", "python", "machine", "commit"}
    assert found["environment"]["torch"] == torch.__version__


def test_memories_snapshots_and_model_are_found_under_their_names(tmp_path: Path) -> None:
    made = RunFolder(tmp_path)
    made.write_memories(
        {4: ClientMemory({"head": torch.ones(2)}), 11: ClientMemory({"head": torch.zeros(2)})}
    )
    assert {n: t.tolist() for n, t in load_file(tmp_path / "clients.safetensors").items()} == {
        "4/head": [1, 1],
        "11/head": [0, 0],
    }
    made.write_snapshot(7, {"prompts": torch.tensor([7.0])})
    (snapshot,) = (tmp_path / "snapshots").iterdir()
    assert snapshot.name == "round-000007.safetensors"
    assert load_file(snapshot)["prompts"].tolist() == [7]
    made.write_model({"head": torch.tensor([2.0])}, {"rounds": 7})
    assert load_file(tmp_path / "model.safetensors")["head"].tolist() == [2]
    assert json.loads((tmp_path / "model.json").read_text()) == {"rounds": 7}


def test_of_nothing_there_is_no_file(tmp_path: Path) -> None:
    made = RunFolder(tmp_path)
    made.write_memories({4: ClientMemory()})
    made.write_analysis({})
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_summary_is_not_finished(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="the run is not finished"):
        read_summary(tmp_path)
    RunFolder(tmp_path).write_summary({"mean_accuracy": 0.5})
    assert read_summary(tmp_path) == {"mean_accuracy": 0.5}
    (tmp_path / "summary.json").write_text("[]")
    with pytest.raises(RunFolderError, match="must hold an object"):
        read_summary(tmp_path)


def test_equal_tensors_are_equal_files_whatever_their_order(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6.0).view(2, 3).T, "a": torch.tensor([1.0])}
    write_tensors(tmp_path / "one", tensors)
    write_tensors(tmp_path / "two", dict(sorted(tensors.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert torch.equal(load_file(tmp_path / "one")["b"], tensors["b"])


def test_what_cannot_be_written_leaves_the_old_file_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file"
    write_bytes(place, b"old")

    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(RunFolderError, match="No space left on device. Free some space"):
            write_bytes(place, b"new")
    assert place.read_bytes() == b"old"
    write_bytes(place, b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"new")]


def test_numbers_that_json_lacks_are_not_written(tmp_path: Path) -> None:
    made = RunFolder(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        made.append_metrics({"train_loss": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        made.write_summary({"mean_accuracy": float("inf")})
    assert list(tmp_path.iterdir()) == []


def test_only_what_a_run_leaves_is_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with_rounds_in = RunFolder(place)
    with_rounds_in.open()
    with_rounds_in.append_metrics({"round": 1})
    with_rounds_in.close()
    with pytest.raises(RunFolderError, match="is not empty"):
        RunFolder(place).open()
    (place / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"is not a run folder \(it holds 'notes.txt'\)"):
        RunFolder(place).open(overwrite=True)
    (place / "notes.txt").unlink()
    again = RunFolder(place)
    again.open(overwrite=True)
    again.close()
    assert not (place / "metrics.jsonl").exists()
