"""pFedPG: the server's generator learns from the clients' changes; heads stay where they are."""

from __future__ import annotations

import pytest
import torch

from fedcue.aggregate.step import Step, moments
from fedcue.methods.pfedpg import GENERATOR, PFedPG, generate
from fedcue.train.settings import Training
from fedcue.types import ClientMemory, Sizes

VARIANTS = [
    {"descriptor_vectors": vectors, "server_optimiser": optimiser}
    for vectors in ("one", "prompts")
    for optimiser in ("adamw", "sgd")
]


@pytest.mark.parametrize("options", VARIANTS)
def test_a_small_server_step_brings_generated_prompts_closer_to_the_adapted_ones(options, federation):
    tiny = federation(PFedPG(server_lr=1e-5, **options))
    state = tiny.start()
    before = tiny.method.download(state, 1, 0).tensors["prompts"]
    update, _ = tiny.update(state, 1)
    adapted = before + update.tensors["prompt_change"]
    after = tiny.method.download(tiny.method.aggregate(state, [update]), 1, 0).tensors["prompts"]
    assert (after - adapted).norm() < (before - adapted).norm()
    assert not torch.equal(after, before)


@pytest.mark.parametrize("options", VARIANTS)
def test_absent_clients_keep_descriptor_and_moments(options, federation):
    tiny = federation(PFedPG(**options))
    run = tiny.run(1, sampled=(2, 0))
    before = run.state.tensors
    after = run.more(1, sampled=(1, 2)).state.tensors
    assert before["descriptor_ids"].tolist() == [2, 0]
    assert after["descriptor_ids"].tolist() == [2, 0, 1]
    for name in ("descriptors", "descriptors_mean", "descriptors_square", "descriptors_steps"):
        assert torch.equal(after[name][1], before[name][1])
    assert not torch.equal(after["descriptors"][0], before["descriptors"][0])
    if options["server_optimiser"] == "adamw":
        assert after["descriptors_steps"].tolist() == [2, 1, 1]


def test_a_million_clients_cost_nothing_until_they_are_sampled():
    method = PFedPG()
    setting = Setting(classes=4, width=32, depth=8, patch=4, clients=1_000_000)
    state = method.start(setting, 5, [])
    assert state.tensors["descriptors"].numel() == 0
    prompts = method.download(state, 999_999, 5).tensors["prompts"]
    assert prompts.shape == (10, 32)
    assert torch.equal(prompts, method.download(state, 999_999, 5).tensors["prompts"])
    assert not torch.equal(prompts, method.download(state, 7, 5).tensors["prompts"])


def test_the_first_descriptor_is_the_one_the_server_goes_on_with(federation):
    tiny = federation(PFedPG(server_lr=0.0, server_weight_decay=0.0))
    run = tiny.run(1)
    for client in (0, 2, 3):
        before = tiny.method.download(tiny.start(), client, 0).tensors["prompts"]
        after = tiny.method.download(run.state, client, 0).tensors["prompts"]
        torch.testing.assert_close(after, before)


def test_the_mean_is_over_the_senders_and_does_not_hang_on_their_order(federation):
    tiny = federation(PFedPG(server_optimiser="sgd", server_lr=0.1))
    state = tiny.start()
    updates = [tiny.update(state, client)[0] for client in range(3)]
    forward, backward = tiny.method.aggregate(state, updates), tiny.method.aggregate(state, updates[::-1])
    alone = [tiny.method.aggregate(state, [update]) for update in updates]
    for name in GENERATOR:
        torch.testing.assert_close(forward.tensors[name], backward.tensors[name])
        mean = sum(single.tensors[name] for single in alone) / 3
        torch.testing.assert_close(forward.tensors[name], mean)


def test_descriptor_of_each_client_shapes_only_its_own_prompts(federation):
    tensors = dict(federation(PFedPG()).run(1).state.tensors)
    before = generate(tensors)
    tensors["descriptors"] = tensors["descriptors"].clone()
    tensors["descriptors"][1] += 1
    changed = (generate(tensors) != before).flatten(1).any(1)
    assert changed.tolist() == [False, True, False]


def test_adaptation_happens_only_at_the_end_and_is_thrown_away(federation):
    tiny = federation(PFedPG())
    run = tiny.run(1)
    stored = {name: tensor.clone() for name, tensor in run.memories[0].tensors.items()}
    download = tiny.method.download(run.state, 0, 0)
    plain = tiny.method.for_test(tiny.visit(0), download, run.memories[0], final=False)
    adapted = tiny.method.for_test(tiny.visit(0), download, run.memories[0], final=True)
    assert torch.equal(plain["head"], stored["head"])
    assert torch.equal(plain["prompts"], download.tensors["prompts"])
    assert not torch.equal(adapted["head"], stored["head"])
    assert torch.equal(run.memories[0].tensors["head"], stored["head"])
    never = PFedPG(evaluation="none").for_test(tiny.visit(0), download, run.memories[0], final=True)
    assert torch.equal(never["head"], stored["head"])


def test_adapting_serves_a_client_that_was_never_sampled(federation):
    run = federation(PFedPG(), training=Training(lr=0.1, epochs=8, batch_size=8)).run(1, sampled=(0,))
    assert 3 not in run.memories
    assert run.accuracy(3, final=True) == 1


def test_heldout_is_declared_not_applicable():
    assert not PFedPG.supports_heldout


def test_private_head_starts_the_same_everywhere(federation):
    tiny = federation(PFedPG(head_bias=True))
    download = tiny.method.download(tiny.start(), 3, 0)
    tensors = tiny.method.personalize(tiny.model, download, tiny.samples(3).log_priors, ClientMemory())
    assert tensors["head"].shape == (4, 32)
    assert tensors["head_bias"].shape == (4,)
    assert set(download.tensors) == {"prompts"}


@pytest.mark.parametrize("rows", [None, [0, 2]])
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_server_step_is_torchs(optimiser, rows):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(3, 4, generator=generator)
    apart = [row.clone().requires_grad_() for row in value]
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimiser]
    reference = kind(apart, lr=0.01, weight_decay=0.1)
    step = Step(optimiser=optimiser, lr=0.01, weight_decay=0.1)
    tensors = {"x": value, **moments("x", value, rowwise=rows is not None)}
    chosen = rows or [0, 1, 2]
    for _ in range(5):
        gradient = torch.randn(len(chosen), 4, generator=generator)
        for row, own in zip(chosen, gradient, strict=True):
            apart[row].grad = own.clone()
        reference.step()
        tensors |= step(tensors, "x", gradient, rows and torch.tensor(rows))
    torch.testing.assert_close(tensors["x"], torch.stack(apart).detach())
