"""P-PT: private prompts, shared head."""

from __future__ import annotations

import pytest
import torch

from fedcue.methods.ppt import PPT
from fedcue.types import ClientMemory


@pytest.mark.parametrize("alternate", [False, True])
def test_only_the_head_is_sent_and_the_prompts_differ_by_client(alternate, federation):
    run = federation(PPT(alternate=alternate)).run(2)
    assert all(set(update.tensors) == {"head"} for update in run.updates[1])
    prompts = [run.memories[client].tensors["private_prompts"] for client in range(3)]
    assert not torch.equal(prompts[0], prompts[1])
    assert run.loss(1) < run.loss(0)


def test_every_client_starts_with_the_same_prompts_and_heldout_ones_keep_them(federation):
    tiny = federation(PPT(prompts=2))
    run = tiny.run(1)
    download = tiny.method.download(run.state, 3, tiny.seed)
    first = [
        tiny.method.personalize(tiny.model, download, tiny.samples(client).log_priors, ClientMemory())
        for client in (1, 3)
    ]
    assert torch.equal(first[0]["private_prompts"], first[1]["private_prompts"])
    assert first[0]["private_prompts"].shape == (2, 32)
    assert torch.equal(first[0]["head"], run.state.tensors["head"])


def test_a_client_goes_on_with_its_own_prompts(federation):
    tiny = federation(PPT())
    run = tiny.run(1)
    download = tiny.method.download(run.state, 0, tiny.seed)
    tensors = tiny.method.for_test(tiny.visit(0), download, run.memories[0], final=False)
    assert torch.equal(tensors["private_prompts"], run.memories[0].tensors["private_prompts"])


def test_alternating_trains_the_head_behind_the_new_prompts(federation, monkeypatch):
    tiny = federation(PPT(alternate=True))
    trained = []
    visit = tiny.visit(0)
    fit = type(visit).fit
    monkeypatch.setattr(type(visit), "fit", lambda *given: trained.append(set(given[2])) or fit(*given))
    tiny.method.update(visit, tiny.method.download(tiny.start(), 0, 0), ClientMemory())
    assert trained == [{"private_prompts"}, {"head"}]
