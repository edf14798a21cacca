"""Central: one model on everybody's images, with as many steps as a federated round has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import SMALL

import fedcue
from fedcue.clients.federation import load_federation
from fedcue.config.layers import load
from fedcue.data.clients import Pool
from fedcue.errors import ConfigError
from fedcue.methods.central import Central
from fedcue.methods.fedvpt import FedVPT
from fedcue.rng import rng
from fedcue.types import ClientMemory, Download


def pooled(federation, method=None, *settings, **more):
    return federation(method or Central(), settings=("pooled=true", *settings), **more)


def test_the_method_turns_pooling_on_whatever_is_given():
    assert load("default", ["method=central"]).pooled
    assert load("default", ["method=central", "pooled=false"]).pooled
    assert not load("default", ["method=fedvpt"]).pooled


def test_a_round_is_one_visit_and_nothing_travels(federation):
    run = pooled(federation, images=8).run(2)
    assert [len(updates) for updates in run.updates] == [1, 1]
    for record in run.result.rounds:
        assert len(record["clients"]) == 1
        assert record["upload_floats"] == record["download_floats"] == record["download_bytes"] == 0
    assert run.loss(1) < run.loss(0)


def test_what_is_trained_is_the_servers_model_as_it_is(federation):
    run = pooled(federation, images=8).run(1)
    for name, tensor in run.updates[0][0].tensors.items():
        assert torch.equal(run.state.tensors[name], tensor), "the mean of one"
    tensors = [run.for_test(client)[1] for client in range(4)]
    assert all(torch.equal(tensors[0]["head"], other["head"]) for other in tensors)


def test_every_round_and_seed_draw_other_images_whoever_visits(federation):
    tiny, seen = pooled(federation, None, "clients_per_round=1", images=8), []

    def watched(loss, start, samples, *rest):
        seen.append(tuple(samples.frozen.indices.tolist()))
        return dict(start), 0.0

    tiny.host.loop = watched
    first = tiny.method.table(tiny.sizes).first(0)
    for client, round_ in ((0, 0), (0, 1), (0, 2), (1, 2)):
        tiny.host.train(Download(client, round_, first), ClientMemory())
    tiny.host.config = tiny.host.config.model_copy(update={"seed": 1})
    tiny.host.train(Download(0, 0, first), ClientMemory())
    assert len(set(seen)) == 4
    assert seen[2] == seen[3]


def test_a_visit_has_as_many_images_as_a_rounds_clients_and_never_a_held_out_clients(federation):
    sizes = {}
    for drawn in (1, 2, 3):
        tiny = pooled(federation, None, f"clients_per_round={drawn}", images=8)
        seen, fit = [], tiny.host.loop

        def watched(loss, start, samples, *rest, seen=seen, fit=fit):
            seen.append(samples)
            return fit(loss, start, samples, *rest)

        tiny.host.loop = watched
        tiny.update(tiny.start(), 0)
        sizes[drawn] = len(seen[0])
        rows = seen[0].frozen.indices.tolist()
        assert set(rows) <= set(np.concatenate(tiny.partition.train[:3]).tolist())
        assert len(set(rows)) == len(rows)
    assert sizes == {1: 8, 2: 16, 3: 24}, "with all clients' share every image is there once"


def test_images_are_drawn_anew_for_every_round_and_evenly_from_all(federation):
    clients = federation(Central(), images=16).host.clients
    pool = Pool.of(clients)
    assert (pool.clients, len(pool.images)) == (3, 48)
    one, other, again = (pool.drawn(1, rng(0, "pool", number)) for number in (0, 1, 0))
    assert np.array_equal(one.train, again.train)
    assert not np.array_equal(one.train, other.train)
    assert one.class_priors.sum() == pytest.approx(1)
    assert np.array_equal(one.class_priors, np.bincount(one.train_labels, minlength=4) / 16)
    often = np.bincount(
        np.concatenate([pool.drawn(1, rng(0, "pool", n)).train for n in range(300)]), minlength=64
    )
    assert often[:48].min() > 60  # of 100 on average
    assert not often[48:].any()


def test_any_method_whose_clients_only_train_what_they_are_sent_can_be_pooled(federation):
    run = pooled(federation, FedVPT(), images=8).run(1)
    assert len(run.updates[0]) == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["method=central", "privacy=dp"], "privacy=dp has no meaning"),
        (["method=central", "aggregate=median"], "aggregate=median"),
        (["method=ppt", "pooled=true"], "method=ppt has no meaning"),
        (["method=pep", "pooled=true"], "method=pep has no meaning"),
        (["method=pfedpg", "pooled=true"], "method=pfedpg has no meaning"),
    ],
)
def test_what_has_no_meaning_is_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        load_federation(load("default", [*SMALL, *settings]))


def test_every_client_is_tested_held_out_ones_too(tmp_path):
    settings = [*SMALL, "method=central", "heldout=1", "method.prompts=0", "min_updates=2"]
    result = fedcue.run(fedcue.configure("default", settings), tmp_path / "run")
    assert result.summary["total_upload_floats"] == 0
    assert result.summary["heldout_mean_accuracy"] is not None
    assert all(record["train_loss"] > 0 for record in result.rounds)
