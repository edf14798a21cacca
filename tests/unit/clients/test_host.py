"""A client's work is a function of seed, client, round, download and memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import SMALL

from fedcue.clients.federation import load_federation
from fedcue.clients.host import Host, check_finite
from fedcue.config.layers import load
from fedcue.errors import ClientError
from fedcue.methods.client import Client
from fedcue.methods.head import HeadTuning
from fedcue.rounds.simulator import at_work, let_work
from fedcue.types import ClientMemory, Download, Tensors, Update


@pytest.fixture(scope="module")
def host() -> Host:
    return load_federation(load("default", [*SMALL, "method=head"])).host


def trained(host: Host, client: int, round_: int) -> torch.Tensor:
    download = Download(client, round_, host.table.first(0))
    return host.train(download, ClientMemory())[0].tensors["head"]


def test_the_order_of_batches_depends_on_the_round(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rate's decay off, only the stream of the client differs between rounds."""
    flat = host.config.training.model_copy(update={"lr_decay": 1.0})
    monkeypatch.setattr(host, "config", host.config.model_copy(update={"training": flat}))
    assert torch.equal(trained(host, 0, 3), trained(host, 0, 3))
    assert not torch.equal(trained(host, 0, 3), trained(host, 0, 4))


def test_the_seed_shuffles_batches_and_draws_first_values(
    monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    other = host.config.model_copy(update={"seed": 1})
    before = trained(host, 0, 0)
    monkeypatch.setattr(host, "config", other)
    assert not torch.equal(trained(host, 0, 0), before)
    assert not torch.equal(host.table.first(0)["head"], host.table.first(1)["head"])


def test_every_client_round_and_seed_has_a_random_stream_of_its_own(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = []

    def watched(loss, start, samples, training, finished_rounds, generator, *rest):  # type: ignore[no-untyped-def]
        streams.append(tuple(torch.rand(4, generator=generator.clone_state()).tolist()))
        return dict(start), 0.0

    monkeypatch.setattr(host, "loop", watched)
    for client, round_ in ((0, 3), (1, 3), (0, 4), (0, 3)):
        trained(host, client, round_)
    monkeypatch.setattr(host, "config", host.config.model_copy(update={"seed": 1}))
    trained(host, 0, 3)
    assert streams[3] == streams[0]
    assert len(set(streams)) == 4


def test_so_has_every_client_and_seed_before_round_0_and_every_round_in_a_test(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[tuple[float, ...]] = []

    class Noting(HeadTuning):
        def warm_up(self, client: Client) -> Tensors:
            streams.append(tuple(torch.rand(4, generator=client.generator).tolist()))
            return {}

        def for_test(self, client: Client, sent: Tensors, final: bool) -> Tensors:
            self.warm_up(client)
            return super().for_test(client, sent, final)

    def tested(client: int, round_: int) -> None:
        host.test([client], Download(client, round_, host.table.first(0)), ClientMemory(), False)

    monkeypatch.setattr(host, "method", Noting())
    for client, round_ in ((0, 3), (1, 3), (0, 4), (0, 3)):
        tested(client, round_)
    assert streams[3] == streams[0]
    for client in (0, 1, 0):
        host.warm_up(client)
    assert streams[6] == streams[4]
    monkeypatch.setattr(host, "config", host.config.model_copy(update={"seed": 1}))
    tested(0, 3)
    host.warm_up(0)
    assert len(set(streams)) == 7


def test_an_update_that_is_not_a_number_is_a_failure_by_name() -> None:
    with pytest.raises(ClientError, match="its update of head is not finite"):
        check_finite(Update(0, 1, {"head": torch.tensor([1.0, torch.nan])}))


def test_a_bug_says_where_it_happened_and_a_failure_does_not(host: Host) -> None:
    let_work(host)
    with pytest.raises(KeyError) as bug, at_work("training", [3], 7):
        raise KeyError("misspelt")
    assert bug.value.__notes__ == [
        "This is a bug, not a failure of the client: training of client 3 in round 8."
    ]
    with pytest.raises(ClientError) as failure, at_work("training", [3], 7):
        raise ClientError("it tripped")
    assert not hasattr(failure.value, "__notes__")


@pytest.mark.parametrize("privacy", ["none", "dp"])
def test_class_mixes_are_counted_when_their_concentration_is_asked_for(
    privacy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    counted = "fedcue.clients.host.concentration_of"
    monkeypatch.setattr(counted, lambda mixes: asked.extend(mix.tolist() for mix in mixes) or 0.5)
    federation = load_federation(load("default", [*SMALL, "method=head", f"privacy={privacy}"]))
    assert not asked
    assert federation.host.concentration == federation.host.concentration == 0.5
    training = [] if privacy == "dp" else federation.roster.training_clients.tolist()
    labels = [federation.host.client(client).train_labels for client in training]
    assert asked == [np.bincount(own, minlength=10).tolist() for own in labels]
