"""A whole run on the embedded data: what it leaves behind, that it repeats, and how it fails."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import SMALL, without_times

import fedcue
from fedcue.clients.federation import Federation, load_federation
from fedcue.clients.host import Host
from fedcue.errors import ClientError, ConfigError, FedcueError, RunFolderError
from fedcue.record.folder import read_metrics
from fedcue.report.runs import read_run


def small(*overrides: str) -> fedcue.RunConfig:
    return fedcue.configure("default", [*SMALL, *overrides])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedcue.Result:
    return fedcue.run(small(), tmp_path_factory.mktemp("runs") / "pep")


def test_the_run_folder_holds_what_was_promised(finished: fedcue.Result) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    assert {
        "config.toml", "metrics.jsonl", "clients.csv", "summary.json", "model.safetensors", "model.json",
        "analysis.safetensors", "snapshots", "checkpoints",
    } <= names  # fmt: skip
    assert {path.name for path in (finished.folder / "snapshots").iterdir()} == {
        "round-000000.safetensors",
        "round-000002.safetensors",
    }
    rounds = read_metrics(finished.folder)
    assert [record["round"] for record in rounds] == [1, 2]
    for key in ("clients", "lr", "train_loss", "upload_floats", "download_floats", "seconds", "mean_accuracy",
                "worst_accuracy", "heldout_mean_accuracy", "heldout_worst_accuracy"):  # fmt: skip
        assert key in rounds[-1], key
    assert len((finished.folder / "clients.csv").read_text().splitlines()) == 6


def test_the_summary_repeats_the_last_round(finished: fedcue.Result) -> None:
    last = read_metrics(finished.folder)[-1]
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert summary["mean_accuracy"] == last["mean_accuracy"]
    assert summary["total_upload_floats"] == sum(r["upload_floats"] for r in read_metrics(finished.folder))
    assert summary["warm_up_upload_floats"] > 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_recipe_ends_near_its_best_round(seed: int, tmp_path: Path) -> None:
    """On validation images, of which each is 0.8 points."""
    settings = ["method=head", f"seed={seed}", "evaluation.on=validation", "workers=1"]
    result = fedcue.run(fedcue.configure("default", settings), tmp_path / "run")
    best = max(record["mean_accuracy"] for record in result.rounds)
    assert result.mean_accuracy >= best - 0.03


def test_accuracies_follow_from_the_predictions(finished: fedcue.Result) -> None:
    analysis = load_file(finished.folder / "analysis.safetensors")
    right = (analysis["labels"] == analysis["predicted"]).numpy()
    rows = [line.split(",") for line in (finished.folder / "clients.csv").read_text().splitlines()[1:]]
    clients = analysis["clients"].numpy()
    for row in rows:
        assert float(row[-1]) == pytest.approx(right[clients == int(row[0])].mean(), abs=1e-6)
    assert analysis["confusion"].sum() == len(right)
    weights = analysis["mean_mixing_weights"]  # [C, L, C], averaged by true class
    shown = weights[torch.bincount(analysis["labels"], minlength=10) > 0]
    torch.testing.assert_close(shown.sum(-1), torch.ones(shown.shape[:2]))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_seed_gives_the_same_bits_whatever_the_workers(
    finished: fedcue.Result, tmp_path: Path, workers: int
) -> None:
    again = fedcue.run(small(f"workers={workers}"), tmp_path / "again")
    for name in ("model.safetensors", "analysis.safetensors", "clients.csv"):
        assert (again.folder / name).read_bytes() == (finished.folder / name).read_bytes(), name
    assert without_times(again.rounds) == without_times(finished.rounds)


def test_another_seed_gives_another_model(finished: fedcue.Result, tmp_path: Path) -> None:
    other = fedcue.run(small("seed=1"), tmp_path / "other")
    assert (other.folder / "model.safetensors").read_bytes() != (
        finished.folder / "model.safetensors"
    ).read_bytes()


def test_the_method_does_not_change_who_is_sampled_or_what_they_hold(
    finished: fedcue.Result, tmp_path: Path
) -> None:
    other = fedcue.run(small("method=fedvpt"), tmp_path / "fedvpt")
    assert [r["clients"] for r in other.rounds] == [r["clients"] for r in finished.rounds]
    ours, theirs = (load_file(r.folder / "analysis.safetensors") for r in (finished, other))
    assert torch.equal(ours["train_class_counts"], theirs["train_class_counts"])


def test_held_out_clients_never_train() -> None:
    federation = load_federation(small("heldout=[1,3]", "rounds=0"))
    assert federation.roster.training_clients.tolist() == [0, 2, 4]


def test_the_backbone_is_the_same_after_training(tmp_path: Path) -> None:
    from fedcue.model.backbone import load_backbone

    config = small()
    seen = {}

    def remember(config: fedcue.RunConfig, *told: Any) -> Federation:
        federation = load_federation(config, *told)
        seen["model"] = federation.model
        return federation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedcue.rounds.loop.load_federation", remember)
        fedcue.run(config, tmp_path / "run")
    fresh = load_backbone().state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in seen["model"].backbone.state_dict().items())


def test_a_loaded_model_predicts_what_the_run_predicted(finished: fedcue.Result) -> None:
    analysis = load_file(finished.folder / "analysis.safetensors")
    federation = load_federation(small())
    model = fedcue.load(finished.folder)
    for client in (0, 2):
        mine = analysis["clients"] == client
        images = federation.pixels[analysis["images"][mine].numpy().astype(np.int64)]
        predictions = model.predict(images, client=client)
        expected = [model.classes[label] for label in analysis["predicted"][mine].tolist()]
        assert predictions.labels == expected
        torch.testing.assert_close(predictions.probabilities.sum(1), torch.ones(len(images)))
        assert predictions.details["mixing_weights"].shape == (len(images), 3, 10)


def test_priors_given_by_hand_are_checked(finished: fedcue.Result) -> None:
    model = fedcue.load(finished.folder)
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    assert model.predict(image, priors=[1.0] + [0.0] * 9).details["mixing_weights"][0, 0, 0] == 1
    for bad in ([1.0], [-1.0] + [1.0] * 9, [0.0] * 10):
        with pytest.raises(ConfigError, match="Priors must be 10 numbers"):
            model.predict(image, priors=bad)
    with pytest.raises(ConfigError, match="Unknown client '99'"):
        model.predict(image, client=99)


def test_a_client_is_called_by_its_name_or_its_number(finished: fedcue.Result) -> None:
    model = fedcue.load(finished.folder)
    model = replace(model, clients={0: {"name": "north"}, 1: {"name": "2"}, 2: {"name": "east"}, 3: {}})
    given = ("north", "0", "2", "1", "3", None)
    assert [model.client_called(one) for one in given] == [0, 0, 1, 1, 3, None], "a name comes first"
    with pytest.raises(ConfigError, match=r"Unknown client 'nort'\. Known: .*Did you mean 'north'"):
        model.client_called("nort")


def test_who_has_no_head_of_its_own_is_not_served_with_a_random_one(tmp_path: Path) -> None:
    settings = ["method=pfedpg", "rounds=1", "clients_per_round=1", "heldout=0"]
    model = fedcue.load(fedcue.run(small(*settings), tmp_path / "run").folder)
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    (trained,) = model.memories
    model.predict(image, client=trained)
    for client in (None, next(other for other in model.clients if other != trained)):
        with pytest.raises(ConfigError, match=f"Give one of these clients: {trained}"):
            model.predict(image, client=client)


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(
    finished: fedcue.Result, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in finished.folder.iterdir() if path.is_file()}
    with pytest.raises(RunFolderError, match="is not empty.*--overwrite"):
        fedcue.run(small(), finished.folder)
    assert all(path.read_bytes() == data for path, data in before.items())
    (tmp_path / "thesis.docx").write_text("precious")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        fedcue.run(small(), tmp_path, overwrite=True)
    assert (tmp_path / "thesis.docx").read_text() == "precious"


def test_overwriting_replaces_a_run(tmp_path: Path) -> None:
    fedcue.run(small("rounds=1", "snapshots=[]"), tmp_path / "run")
    result = fedcue.run(small("rounds=1", "snapshots=[]", "method=fedvpt"), tmp_path / "run", overwrite=True)
    assert json.loads((result.folder / "model.json").read_text())["method"]["name"] == "fedvpt"


def test_nothing_is_written_for_a_method_the_backbone_cannot_carry(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reach beyond the backbone, whose blocks are 0 to 11"):
        fedcue.run(small("method.layers=[11,12]"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_more_clients_per_round_than_there_are_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only 5 of 5 clients train"):
        fedcue.run(small("clients_per_round=6", "heldout=0"), tmp_path / "run")


def break_client(monkeypatch: pytest.MonkeyPatch, victim: int) -> None:
    """Let one client fail whenever it trains."""
    train = Host.train

    def broken(self: Host, download: Any, memory: Any) -> Any:
        if download.client == victim:
            raise ClientError("its disk is on fire")
        return train(self, download, memory)

    monkeypatch.setattr(Host, "train", broken)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_client_is_named_and_left_out(
    finished: fedcue.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    victim = finished.rounds[0]["clients"][0]
    break_client(monkeypatch, victim)
    result = fedcue.run(small(f"workers={workers}"), tmp_path / "run")
    failure = result.rounds[0]["failures"][0]
    assert failure == {
        "step": "train", "attempt": 0, "client": victim, "reason": "its disk is on fire"
    }  # fmt: skip
    assert result.rounds[0]["clients"] == finished.rounds[0]["clients"]


def test_a_round_with_too_few_updates_is_drawn_again(
    finished: fedcue.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = finished.rounds[0]["clients"][0]
    break_client(monkeypatch, victim)
    result = fedcue.run(small("min_updates=2", "heldout=0", "clients_per_round=2"), tmp_path / "run")
    for record in result.rounds:
        assert victim not in record["clients"]
    assert any("failures" in record for record in result.rounds)


def test_a_diverging_run_says_so_instead_of_recording_nan(tmp_path: Path) -> None:
    too_fast = ["training.head_lr=1e30", "training.clip_norm=1e30", "training.epochs=3"]
    with pytest.raises(
        FedcueError, match=r"min_updates=1 updates in 10 draws.*loss (nan|inf).*learning rates"
    ):
        fedcue.run(small("method=head", "clients_per_round=1", *too_fast), tmp_path / "run")
    assert "NaN" not in (tmp_path / "run" / "config.toml").read_text()


def test_a_client_that_takes_too_long_is_left_out(tmp_path: Path) -> None:
    with pytest.raises(FedcueError, match="it took longer than client_timeout=1e-09 s"):
        fedcue.run(small("client_timeout=1e-9"), tmp_path / "run")


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    from fedcue.record.folder import RunFolder

    first = RunFolder(tmp_path / "run")
    first.open()
    with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"):
        RunFolder(tmp_path / "run").open(overwrite=True)
    first.close()
    RunFolder(tmp_path / "run").open(overwrite=True)


def test_bfloat16_trains_like_float32_and_predicts_with_the_same_model(tmp_path: Path) -> None:
    losses = {}
    for precision in ("float32", "bfloat16"):
        config = fedcue.configure("default", [*SMALL, "rounds=1", f"precision={precision}"])
        result = fedcue.run(config, tmp_path / precision)
        losses[precision] = result.rounds[0]["train_loss"]
        assert fedcue.load(result.folder).model.precision == precision
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)


def test_a_run_on_validation_images_says_so(tmp_path: Path) -> None:
    done = fedcue.run(
        small("evaluation.on=validation", "rounds=1", "snapshots=[]", "method=head"), tmp_path / "run"
    )
    rows = (done.folder / "clients.csv").read_text().splitlines()
    assert rows[0].endswith("train_size,validation_size,validation_accuracy")
    analysis = load_file(done.folder / "analysis.safetensors")
    assert "test_class_counts" not in analysis
    sizes = [int(row.split(",")[-2]) for row in rows[1:]]
    assert analysis["validation_class_counts"].sum(1).tolist() == sizes
    read = read_run(done.folder)
    assert [client.test_size for client in read.clients] == sizes
    assert all(client.accuracy is not None for client in read.clients)
