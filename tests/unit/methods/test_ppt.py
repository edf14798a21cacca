"""P-PT: private prompts, shared head."""

from __future__ import annotations

import pytest
import torch

from fedcue.methods.ppt import PPT


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
    first = [tiny.personal(run.state, client) for client in (1, 3)]
    assert torch.equal(first[0]["private_prompts"], first[1]["private_prompts"])
    assert first[0]["private_prompts"].shape == (2, 32)
    assert torch.equal(first[0]["head"], run.state.tensors["head"])


@pytest.mark.parametrize("alternate", [False, True])
def test_a_client_goes_on_with_its_own_prompts(alternate, federation):
    tiny = federation(PPT(alternate=alternate))
    run = tiny.run(1)
    own = run.memories[0].tensors["private_prompts"]
    assert torch.equal(run.for_test(0)[1]["private_prompts"], own)
    assert not torch.equal(own, tiny.client(0).first_kept()["private_prompts"])
    seen = {}
    fit = tiny.host.loop
    tiny.host.loop = lambda loss, start, *rest: seen.update(start) or fit(loss, start, *rest)
    tiny.update(run.state, 0, run.memories[0])
    assert torch.equal(seen["private_prompts"], own)
    assert torch.equal(seen["head"], run.state.tensors["head"])


def test_alternating_trains_the_head_behind_the_new_prompts(federation):
    tiny = federation(PPT(alternate=True))
    trained = []
    fit = tiny.host.loop
    tiny.host.loop = lambda loss, start, *rest: trained.append(set(start)) or fit(loss, start, *rest)
    tiny.update(tiny.start(), 0)
    assert trained == [{"private_prompts"}, {"head"}]


def test_each_stage_has_the_others_tensors_as_they_then_are(federation):
    """First the prompts under the head that was sent, then the head behind the prompts that came of it."""
    tiny, stages = federation(PPT(alternate=True), images=8), []
    fit, state, batch = tiny.host.loop, tiny.start(), tiny.batch(0)

    def watched(loss, start, *rest):
        trained, mean = fit(loss, start, *rest)
        stages.append((loss(start, batch), trained))
        return trained, mean

    tiny.host.loop = watched
    first = tiny.personal(state, 0)
    update, memory = tiny.update(state, 0)
    (before, prompts), (between, head) = stages
    torch.testing.assert_close(before, tiny.method.loss({})(first, batch))
    torch.testing.assert_close(between, tiny.method.loss({})({**first, **prompts}, batch))
    assert not torch.equal(between, before)
    assert torch.equal(update.tensors["head"], head["head"])
    assert torch.equal(memory.tensors["private_prompts"], prompts["private_prompts"])


def test_in_two_stages_clients_train_one_by_one():
    assert PPT().trains_together()
    assert not PPT(alternate=True).trains_together()
