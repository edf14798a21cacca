"""Trackers with their real libraries: every round once, also after a resume; nothing else changes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import SMALL

import fedcue
from fedcue.config.layers import load
from fedcue.errors import ConfigError
from fedcue.grid.cells import Cell
from fedcue.grid.execute import difference
from fedcue.rounds.observers import Silent

SETTINGS = [*SMALL, "method=head", "rounds=3"]


class StoppedError(Exception):
    """Ends a run as a crash would."""


class StopsAfter(Silent):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def finished_round(self, record: Mapping[str, Any]) -> None:
        if record["round"] == self.rounds:
            raise StoppedError


def run_in_two_parts(folder: Path, name: str) -> list[dict[str, Any]]:
    """Stop after round 2 (which the tracker is not told of any more), resume, return the rounds."""
    config = load("default", [*SETTINGS, f"log={name}"])
    with pytest.raises(StoppedError):
        fedcue.run(config, folder, observer=StopsAfter(2))
    shutil.copytree(folder, folder.with_name("stopped"))
    result = fedcue.run(config, folder, resume=True)
    return result.rounds


def points(rounds: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(r["round"], pytest.approx(r[name], rel=1e-6)) for r in rounds]


def test_tensorboard_has_every_round_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'fedcue[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rounds = run_in_two_parts(tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "log" / "tensorboard")).Reload()
    for name in ("train_loss", "mean_accuracy", "upload_bytes"):
        assert [(e.step, e.value) for e in events.Scalars(name)] == points(rounds, name)


def test_mlflow_has_every_round_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="pip install 'fedcue[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    from mlflow.tracking import MlflowClient

    rounds = run_in_two_parts(tmp_path / "run", "mlflow")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("fedcue")
    (run,) = client.search_runs([experiment.experiment_id])
    for name in ("train_loss", "mean_accuracy"):
        assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)] == points(
            rounds, name
        )
    assert run.info.status == "FINISHED"
    assert run.data.params["method.name"] == "head"
    assert run.data.metrics["final/mean_accuracy"] == pytest.approx(rounds[-1]["mean_accuracy"])


def test_wandb_gets_every_round_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install 'fedcue[wandb]' to test it (a large package)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    sent = []
    log = wandb.Run.log
    monkeypatch.setattr(
        wandb.Run, "log", lambda self, data, step: (sent.append((step, data)), log(self, data, step=step))
    )
    rounds = run_in_two_parts(tmp_path / "run", "wandb")
    assert [(step, data["train_loss"]) for step, data in sent] == points(rounds, "train_loss")
    files = sorted((tmp_path / "run" / "log" / "wandb" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2  # the two parts
    assert len({file.stem for file in files}) == 1  # are one run


def test_a_tracker_changes_no_result_and_is_no_other_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'fedcue[tensorboard]'")
    plain = fedcue.run(load("default", SETTINGS), tmp_path / "plain")
    logged_config = load("default", [*SETTINGS, "log=tensorboard"])
    logged = fedcue.run(logged_config, tmp_path / "logged")
    tensors = [(r.folder / "model.safetensors").read_bytes() for r in (plain, logged)]
    assert tensors[0] == tensors[1]
    assert not (plain.folder / "log").exists()
    assert difference(Cell("head", {}, 0, logged_config, plain.folder)) == ""
    fedcue.run(load("default", SETTINGS), tmp_path / "logged", overwrite=True)
    assert not (tmp_path / "logged" / "log").exists()


def test_a_tracker_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'fedcue[tensorboard]'")
    from fedcue.record.track.tensorboard import TensorBoard

    def fail(self: TensorBoard, number: int, values: Mapping[str, float]) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(TensorBoard, "log", fail)
    result = fedcue.run(load("default", [*SETTINGS, "rounds=2", "log=tensorboard"]), tmp_path / "run")
    assert len(result.rounds) == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 2
    assert caplog.text.count("log=tensorboard stopped (disk full)") == 1


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "fedcue.record.track.wandb", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"log=wandb needs its extra.*pip install 'fedcue\[wandb\]'"):
        fedcue.run(load("default", [*SETTINGS, "log=wandb"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log=mlflow", ("mlflow",)),
        ("log=mlflow,tensorboard", ("mlflow", "tensorboard")),
        ('log=["wandb"]', ("wandb",)),
    ],
)
def test_one_or_several_can_be_named(text: str, expected: tuple[str, ...]) -> None:
    assert load("default", [text]).log == expected
    assert load("default").log == ()


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ConfigError, match="log.0='tensorbord'"):
        load("default", ["log=tensorbord"])
