"""Which clients are tested together, and in how large pieces."""

from __future__ import annotations

import pytest
from support.tiny_federation import TinyFederation

from fedcue.clients.federation import split
from fedcue.config.layers import load
from fedcue.methods.head import HeadTuning
from fedcue.methods.pep import PEP
from fedcue.methods.pfedpg import PFedPG
from fedcue.methods.ppt import PPT


@pytest.mark.parametrize(
    ("chunk", "groups"),
    [(7, [[0], [1], [2], [3]]), (15, [[0], [1], [2], [3]]), (16, [[0, 1], [2, 3]]), (24, [[0, 1, 2], [3]])],
)
def test_clients_are_tested_together_up_to_a_chunk_of_images(chunk, groups):
    federation = TinyFederation(HeadTuning(), images=8, settings=[f"evaluation.chunk={chunk}"]).federation
    assert federation.test_groups() == groups


def test_clients_with_a_memory_of_their_own_are_tested_alone():
    assert TinyFederation(PPT(), images=8).federation.test_groups() == [[0], [1], [2], [3]]


def test_a_method_that_cannot_serve_held_out_clients_is_not_tested_on_them():
    assert TinyFederation(PFedPG(), images=8).federation.test_groups() == [[0], [1], [2]]
    run = TinyFederation(PFedPG(), images=8).run(1)
    assert run.result.summary["heldout_mean_accuracy"] is None
    assert TinyFederation(HeadTuning(), images=8).run(0).result.summary["heldout_mean_accuracy"] is not None


def test_who_failed_is_left_out_of_the_groups():
    federation = TinyFederation(HeadTuning(), images=8, settings=["evaluation.chunk=16"]).federation
    assert federation.test_groups(without=[1]) == [[0, 2], [3]]


@pytest.mark.parametrize(
    ("method", "priors"),
    [(HeadTuning(), "labels"), (HeadTuning(), "em"), (PEP(), "labels"), (PFedPG(), "labels")],
)
def test_no_batch_without_gradients_is_larger_than_a_chunk(method, priors, monkeypatch):
    tiny = TinyFederation(method, images=12, settings=["evaluation.chunk=5", f"evaluation.priors={priors}"])
    seen = []
    view = type(tiny.frozen.view(tiny.partition.train[0]))
    prefix = view.prefix
    monkeypatch.setattr(
        view, "prefix", lambda self, rows, *rest: seen.append(len(rows)) or prefix(self, rows, *rest)
    )
    tiny.run(0)
    assert max(size for size in seen if size != tiny.training.batch_size) == 5
    assert all(size <= 5 or (method.name == "pfedpg" and size <= 8) for size in seen)


def test_who_has_which_images_and_who_never_trains_follows_from_the_seed():
    def shared(seed):
        clients = split(load("default", [f"seed={seed}"]), dataset)
        return [client.train.tolist() for client in clients], clients.heldout.tolist()

    dataset = load("default").data.load(0)
    (first, held), (second, others) = shared(0), shared(1)
    assert first != second
    assert held != others
    assert (first, held) == shared(0)
