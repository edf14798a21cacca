"""pFedPG: the server's generator learns from the clients' changes; heads stay where they are."""

from __future__ import annotations

import pytest
import torch
from support.tiny_federation import added

from fedcue.methods.pfedpg import GENERATOR, PFedPG, generate, moments
from fedcue.rng import torch_rng
from fedcue.train.settings import Training
from fedcue.types import Sizes, Update

VARIANTS = [
    {"descriptor_vectors": vectors, "server_optimiser": optimiser}
    for vectors in ("one", "prompts")
    for optimiser in ("adamw", "sgd")
]


@pytest.mark.parametrize("options", VARIANTS)
def test_a_small_server_step_brings_generated_prompts_closer_to_the_adapted_ones(options, federation):
    tiny = federation(PFedPG(server_lr=1e-5, **options))
    state = tiny.start()
    before = tiny.sent(state, 1)["prompts"]
    update, _ = tiny.update(state, 1)
    adapted = before + update.tensors["prompt_change"]
    after = tiny.sent(tiny.aggregate(state, [update]), 1)["prompts"]
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
    sizes = Sizes(classes=4, width=32, depth=8, patch=4, clients=1_000_000)
    state = method.start(sizes, 5, added(method, sizes, []))
    assert state.tensors["descriptors"].numel() == 0
    prompts = method.download(state, 999_999, sizes, 5)["prompts"]
    assert prompts.shape == (10, 32)
    assert torch.equal(prompts, method.download(state, 999_999, sizes, 5)["prompts"])
    assert not torch.equal(prompts, method.download(state, 7, sizes, 5)["prompts"])


def test_the_first_descriptor_is_the_one_the_server_goes_on_with(federation):
    tiny = federation(PFedPG(server_lr=0.0, server_weight_decay=0.0))
    run = tiny.run(1)
    for client in (0, 2, 3):
        before = tiny.sent(tiny.start(), client)["prompts"]
        after = tiny.sent(run.state, client)["prompts"]
        torch.testing.assert_close(after, before)


def test_the_mean_is_over_the_senders_and_does_not_hang_on_their_order(federation):
    tiny = federation(PFedPG(server_optimiser="sgd", server_lr=0.1))
    state = tiny.start()
    updates = [tiny.update(state, client)[0] for client in range(3)]
    forward, backward = tiny.aggregate(state, updates), tiny.aggregate(state, updates[::-1])
    alone = [tiny.aggregate(state, [update]) for update in updates]
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
    sent = tiny.sent(run.state, 0)
    plain, adapted = (run.for_test(0, final)[1] for final in (False, True))
    assert torch.equal(plain["head"], stored["head"])
    assert torch.equal(plain["prompts"], sent["prompts"])
    assert not torch.equal(adapted["head"], stored["head"])
    assert not torch.equal(adapted["prompts"], sent["prompts"])
    assert torch.equal(run.memories[0].tensors["head"], stored["head"])
    never = federation(PFedPG(evaluation="none")).run(1)
    assert torch.equal(never.for_test(0, final=True)[1]["head"], stored["head"])


def test_adapting_serves_a_client_that_was_never_sampled(federation):
    run = federation(PFedPG(), training=Training(lr=0.1, epochs=8, batch_size=8)).run(1, sampled=(0,))
    assert 3 not in run.memories
    assert run.accuracy(3, final=True) == 1


def test_heldout_is_declared_not_applicable():
    assert not PFedPG.supports_heldout


def test_private_head_starts_the_same_everywhere(federation):
    tiny = federation(PFedPG(head_bias=True))
    state = tiny.start()
    first, other = tiny.personal(state, 3), tiny.personal(state, 1)
    assert first["head"].shape == (4, 32)
    assert first["head_bias"].shape == (4,)
    assert torch.equal(first["head"], other["head"])
    assert set(tiny.sent(state, 3)) == {"prompts"}


def test_a_client_sends_how_its_prompts_changed_and_not_the_other_way_round(federation):
    tiny = federation(PFedPG(), images=8)
    state, fit, seen = tiny.start(), tiny.host.loop, []

    def watched(*given):
        seen.append(fit(*given)[0])
        return seen[-1], 0.0

    tiny.host.loop = watched
    update, _ = tiny.update(state, 0)
    torch.testing.assert_close(
        update.tensors["prompt_change"], seen[0]["prompts"] - tiny.sent(state, 0)["prompts"], atol=0, rtol=0
    )
    assert update.tensors["prompt_change"].abs().max() > 0


@pytest.mark.parametrize(("weighting", "shares"), [("uniform", (0.5, 0.5)), ("size", (0.75, 0.25))])
def test_senders_count_alike_or_by_their_images(federation, weighting, shares):
    tiny = federation(PFedPG(server_optimiser="sgd", server_lr=0.1, weighting=weighting), images=8)
    state = tiny.start()
    sizes = {0: 30, 1: 10}
    updates = [Update(c, sizes[c], {"prompt_change": torch.full((10, 32), float(c + 1))}) for c in (0, 1)]
    together = tiny.aggregate(state, updates).tensors
    alone = [tiny.aggregate(state, [update]).tensors for update in updates]
    for name in GENERATOR:
        expected = sum(share * own[name] for share, own in zip(shares, alone, strict=True))
        torch.testing.assert_close(together[name], expected)


@pytest.mark.parametrize("rows", [None, [0, 2]])
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_server_step_is_torchs(optimiser, rows):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(3, 4, generator=generator)
    apart = [row.clone().requires_grad_() for row in value]
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimiser]
    reference = kind(apart, lr=0.01, weight_decay=0.1)
    method = PFedPG(server_optimiser=optimiser, server_lr=0.01, server_weight_decay=0.1)
    name = "basis" if rows is None else "descriptors"  # which has steps for each row
    tensors = {name: value, **{spec.name: spec.first(0) for spec in moments(name, (3, 4))}}
    chosen = rows or [0, 1, 2]
    for _ in range(5):
        gradient = torch.randn(len(chosen), 4, generator=generator)
        gradient[:, 0] = 0  # nowhere to go but where the decay leads
        gradient[:, 1] *= 1e-8  # as small as what keeps Adam from dividing by nothing
        for row, own in zip(chosen, gradient, strict=True):
            apart[row].grad = own.clone()
        reference.step()
        tensors |= method.step(tensors, name, gradient, torch.tensor(rows) if rows else slice(None))
    torch.testing.assert_close(tensors[name], torch.stack(apart).detach())


def test_first_descriptors_have_the_deviation_that_is_asked_for():
    like = torch.zeros(0, 10, 64)
    usual = PFedPG().first_descriptor(like, 3, 1)
    assert usual.std().item() == pytest.approx(1, abs=0.1)
    assert torch.equal(PFedPG(descriptor_scale=0.5).first_descriptor(like, 3, 1), 0.5 * usual)
    drawn = torch.randn(1, 10, 64, generator=torch_rng(3, "init", "descriptor", 1))
    assert torch.equal(usual, drawn)


def test_the_first_generator_is_drawn_with_a_variance_of_one_over_the_width():
    table = PFedPG().table(Sizes(classes=4, width=192, depth=8, patch=4, clients=4))
    for name in GENERATOR[1:]:
        values = table[name].first(0)
        assert values.shape == (192, 192)
        assert values.var().item() == pytest.approx(1 / 192, rel=0.03)
        assert (3 / 192) ** 0.5 * 0.999 < values.abs().max() <= (3 / 192) ** 0.5


@pytest.mark.parametrize(("options", "vectors"), [({}, 1), ({"descriptor_vectors": "prompts"}, 7)])
def test_a_client_is_described_by_one_vector_or_by_one_for_each_prompt(options, vectors, federation):
    tiny = federation(PFedPG(prompts=7, **options), images=8)
    assert tiny.run(1).state.tensors["descriptors"].shape == (3, vectors, 32)
