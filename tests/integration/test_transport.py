"""Sparse messages carry only a client's own classes, and change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import SMALL

import fedcue
from fedcue.errors import ConfigError
from fedcue.methods.cue import Cue
from fedcue.methods.pep import PEP
from fedcue.rounds.transport import Traffic, Wire
from fedcue.types import Download, ServerState, Sizes, Update, count_floats

CIFAR = Sizes(classes=100, width=768, depth=12, patch=16, clients=100)


def config(*overrides: str) -> fedcue.RunConfig:
    return fedcue.configure("default", [*SMALL, "snapshots=[]", *overrides])


@pytest.mark.parametrize(
    "settings", [("rounds=5", "method.period=2"), ("rounds=2", "method=cue", "method.logit_prior=train+test")]
)
def test_sparse_training_is_dense_training_bit_for_bit(tmp_path: Path, settings: tuple[str, ...]) -> None:
    dense = fedcue.run(config(*settings), tmp_path / "dense")
    sparse = fedcue.run(config(*settings, "transport=sparse"), tmp_path / "sparse")
    assert (dense.folder / "model.safetensors").read_bytes() == (
        sparse.folder / "model.safetensors"
    ).read_bytes()
    for one, other in zip(dense.rounds, sparse.rounds, strict=True):
        assert other["upload_floats"] < one["upload_floats"]
        assert other["download_floats"] < one["download_floats"]
        assert one["mean_accuracy"] == other["mean_accuracy"]


def test_a_method_without_class_rows_sends_the_same_either_way(tmp_path: Path) -> None:
    runs = [
        fedcue.run(config("method=fedvpt", f"transport={name}"), tmp_path / name)
        for name in ("dense", "sparse")
    ]
    assert runs[0].rounds[0]["upload_floats"] == runs[1].rounds[0]["upload_floats"]


def test_sparse_floats_on_cifar_100_with_ten_classes() -> None:
    """The figures of the design: 108,288 floats up, and down only what changed."""
    method = PEP()
    table = method.table(CIFAR)
    transport = Wire(config("transport=sparse"), table)
    holds = torch.zeros(100, dtype=torch.bool)
    holds[:10] = True
    centroids = torch.zeros(3, 100, 768)
    transport.first_reply(Update(0, 500, {"centroids": centroids, "holds": holds}))
    start = table.first(0)
    tensors = {
        **{name: start[name] for name in table.sent},
        "prototypes": centroids,
        "has_prototype": torch.ones(100, dtype=torch.bool),
    }
    trained = {name: tensors[name] for name in table.trained}
    transport.traffic = Traffic()
    received = transport.upload(Update(0, 500, {**trained, "centroids": centroids, "holds": holds}), tensors)
    assert transport.traffic.upload_floats == 108_288
    assert all(torch.equal(received.tensors[name], tensors[name]) for name in trained)
    transport.changed = 1

    def sent(number: int) -> int:
        transport.traffic = Traffic()
        made = transport.download(Download(0, number, tensors))
        assert made.tensors.keys() == tensors.keys()
        return transport.traffic.download_floats

    first = sent(1)
    assert first == 76_800 + 768 + 7_680 + 23_040
    made = transport.download(Download(0, 1, tensors))
    assert torch.equal(made.tensors["class_prompts"][:10], tensors["class_prompts"][:10])
    assert sent(2) == 76_800 + 768 + 7_680, "unchanged prototypes are not sent again"
    moved = {**tensors, "prototypes": centroids + 1}
    transport.note_changes(ServerState(2, tensors), ServerState(3, moved))
    assert sent(3) == first


def test_an_unknown_client_is_sent_everything() -> None:
    table = PEP().table(CIFAR)
    transport, tensors = Wire(config("transport=sparse"), table), table.first(0)
    transport.download(Download(7, 0, tensors))
    assert transport.traffic.download_floats == count_floats(tensors)


def test_half_precision_halves_the_bytes(tmp_path: Path) -> None:
    whole = fedcue.run(config("rounds=1"), tmp_path / "whole")
    half = fedcue.run(config("rounds=1", "transport.dtype=float16"), tmp_path / "half")
    assert half.rounds[0]["upload_floats"] == whole.rounds[0]["upload_floats"]
    assert half.rounds[0]["upload_bytes"] < 0.51 * whole.rounds[0]["upload_bytes"]
    assert half.mean_accuracy == pytest.approx(whole.mean_accuracy, abs=0.1)


def test_numbers_too_large_for_half_precision_travel_whole() -> None:
    transport = Wire(config("transport.dtype=float16", "method=cue"), Cue().table(CIFAR))
    sent = {"small": torch.tensor([1.5]), "large": torch.tensor([1e6]), "counts": torch.tensor([7])}
    received = transport.upload(Update(0, 1, sent), {})
    assert transport.traffic.upload_bytes == 2 + 4 + 8
    assert all(torch.equal(received.tensors[name], sent[name]) for name in sent)


@pytest.mark.parametrize(
    "settings",
    [
        ("method.prior=uniform",),
        ("method.prior_smoothing=0.1",),
        ("method=cue",),
        ("method=cue", "privacy=dp"),
    ],
)
def test_sparse_is_refused_where_every_class_counts(tmp_path: Path, settings: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="Use transport=dense|cannot protect"):
        fedcue.run(config("transport=sparse", *settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rounding_before_the_servers_noise_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    with pytest.raises(ConfigError, match=r"Give transport.dtype=float32"):
        fedcue.run(config("transport.dtype=float16", "privacy=dp"), tmp_path / "run")
