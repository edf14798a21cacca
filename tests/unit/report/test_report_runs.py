"""Reading run folders: finished, going on, stopped, damaged, hostile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from handmade import eight_methods, write_run

from fedcue.errors import RunFolderError
from fedcue.report.facts import failures, headline, privacy
from fedcue.report.palette import COLOURS
from fedcue.report.runs import find_runs, need_runs, read_run
from fedcue.report.series import series_of


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
@pytest.mark.parametrize("content", [b"\xff\x00{[", b'{"a": [', b"[1]\n"])
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


def test_seeds_form_a_series_and_unfinished_runs_stand_alone(tmp_path: Path) -> None:
    eight_methods(tmp_path, seeds=(0, 1))
    write_run(tmp_path / "pep-2", "pep", 2, done=5)
    series = series_of(find_runs([tmp_path]))
    assert [one.label for one in series][:2] == ["Head-Tuning", "FedVPT"]
    assert series[-2].label == "PEP-FedPT"
    assert series[-2].seeds == [0, 1]
    assert series[-1].label == "PEP-FedPT, seed 2, stopped"
    assert series[-1].slot % COLOURS == series[-2].slot % COLOURS


def test_what_does_not_change_a_result_does_not_set_seeds_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, evaluation__chunk=100, workers=1)
    write_run(tmp_path / "b", seed=1, evaluation__chunk=200, workers=2)
    assert [one.seeds for one in series_of(find_runs([tmp_path]))] == [[0, 1]]


def test_a_label_names_the_settings_that_differ(tmp_path: Path) -> None:
    write_run(tmp_path / "a", method__temperature=0.05)
    write_run(tmp_path / "b", method__temperature=1.0)
    labels = [one.label for one in series_of(find_runs([tmp_path]))]
    assert labels == ["PEP-FedPT, temperature 0.05", "PEP-FedPT, temperature 1"]


def test_a_label_says_only_what_is_unusual(tmp_path: Path) -> None:
    for number, changes in enumerate(
        ({}, {"temperature": 1.0}, {"prompts": 5}, {"prompts": 5, "momentum": 0})
    ):
        settings = {f"method__{key}": value for key, value in changes.items()}
        write_run(tmp_path / str(number), **settings)
    labels = [one.label for one in series_of(find_runs([tmp_path]))]
    assert labels == [
        "PEP-FedPT, prompts default", "PEP-FedPT, prompts default, temperature 1", "PEP-FedPT, prompts 5",
        "PEP-FedPT, momentum 0, prompts 5",
    ]  # fmt: skip


def test_the_headline_says_when_the_lead_is_within_the_spread(tmp_path: Path) -> None:
    for seed, level in enumerate((0.80, 0.90)):
        write_run(tmp_path / f"a{seed}", "pep", seed, level=level)
        write_run(tmp_path / f"b{seed}", "fedvpt", seed, level=level - 0.01)
    text = headline(series_of(find_runs([tmp_path])))
    assert text.startswith("PEP-FedPT reaches")
    assert "within the spread over seeds" in text


def test_failures_and_privacy_are_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", done=2, privacy={"name": "paper", "epsilon": 0.2})
    Path(f"{folder}.error.txt").write_text("Traceback\n  ...\nMemoryError: too large\n")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(
            '{"round": 3, "train_loss": 1.0, "failures": [{"client": 7, "step": "train", "reason": "NaN"}]}\n'
        )
    runs = find_runs([tmp_path])
    texts = [failure.text for failure in failures(runs)]
    assert "stopped after round 3 of 20 (MemoryError: too large)" in texts[0]
    assert texts[1] == "client 7, step train, reason NaN"
    [(_, lines)] = privacy(series_of(runs))
    assert {line.name: line.text for line in lines} == {"name": "paper", "epsilon": "0.2"}
