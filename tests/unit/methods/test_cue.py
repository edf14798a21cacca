"""Cue: a head of class means under the first prompts, and rows of other classes that stay as they are."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from test_statistics_head import CLIENTS, expected_head

from fedcue.errors import ConfigError
from fedcue.methods.cue import Cue
from fedcue.model.prompted import shallow
from fedcue.rng import torch_rng
from fedcue.train.settings import Training


def test_cue_takes_its_prototypes_under_its_first_prompts(federation):
    tiny = federation(Cue(scale=3.0, blocks=1))
    start, parts = tiny.start().tensors, []
    for client in CLIENTS:
        batch = tiny.batch(client)
        prompter = shallow(batch.inputs.tokens[0, :1] + start["prompts"][0])
        parts.append((tiny.model.features(batch.inputs, prompter)[:, 0], batch.labels))
    x, labels = (torch.cat(part).double().numpy() for part in zip(*parts, strict=True))
    for name, expected in expected_head(x, labels, 3.0, whiten=True).items():
        np.testing.assert_allclose(start[name].numpy(), expected, rtol=5e-3, atol=5e-3)


def test_by_default_the_scale_is_ten_and_the_prior_is_on_at_test(federation):
    tiny = federation(Cue(whiten=False), images=8)
    run = tiny.run(0)
    sums = sum(reply.tensors["centroids"].double() for reply in run.replies)[0]
    means = sums / sum(reply.tensors["holds"] for reply in run.replies)[:, None]
    own = (means.float() @ run.state.tensors["head"].T + run.state.tensors["head_bias"]).diagonal()
    assert own.mean().item() == pytest.approx(10.0, rel=1e-3)
    assert torch.equal(run.predict(0)[:, 2:], torch.full((8, 2), -torch.inf))  # of classes 0 and 1
    without = federation(Cue(whiten=False, logit_prior="none"), images=8).run(0)
    assert torch.isfinite(without.predict(0)).all()


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_with_the_prior_in_the_loss_rows_of_other_classes_do_not_move(federation, decay):
    training = Training(lr=0.1, epochs=2, batch_size=8, weight_decay=decay)
    tiny = federation(Cue(scale=1.0, logit_prior="train+test"), images=8, training=training)
    state = tiny.start()
    update, _ = tiny.update(state, 0)  # of classes 0 and 1
    for name in ("head", "head_bias"):
        moved = (update.tensors[name] != state.tensors[name]).view(4, -1).any(1)
        assert moved.tolist() == [True, True, False, False]


def test_without_the_prior_in_the_loss_every_row_moves(federation):
    tiny = federation(Cue(scale=1.0), images=8)
    state = tiny.start()
    update, _ = tiny.update(state, 0)
    assert (update.tensors["head"] != state.tensors["head"]).any(1).all()


def test_the_first_prompts_are_near_copies_of_the_cls_token(federation):
    tiny = federation(Cue(prompts=3, blocks=2), images=8)
    tensors, batch = tiny.start().tensors, tiny.batch(0)
    insert, tokens = tiny.method.prompter(tensors, batch), torch.randn(8, 10, 32)
    for block in (0, 1):
        inserted = insert(block, tokens)
        difference = tensors["prompts"][block].expand(8, -1, -1)
        torch.testing.assert_close(inserted.tokens - difference, tokens[:, :1].expand(-1, 3, -1))
        assert inserted.overwrite is (block > 0)
    assert insert(2, tokens) is None
    assert tiny.run(1).state.tensors["prompts"].shape == (2, 3, 32)


def test_the_first_prompts_are_the_same_for_every_seed(federation):
    first, other = (federation(Cue(), images=8, seed=seed).host.table.first(seed) for seed in (0, 9))
    assert torch.equal(first["prompts"], other["prompts"])
    assert not torch.equal(first["head"], other["head"])
    bound = (6 / (3 * 4**2 + 32)) ** 0.5  # VPT's, of patches of 4 x 4 and width 32
    drawn = (torch.rand(8, 1, 32, generator=torch_rng(0, "init", "prompts")) * 2 - 1) * bound
    assert torch.equal(first["prompts"], drawn)


def test_only_with_the_prior_in_the_loss_a_client_needs_rows_of_its_own_alone(federation):
    assert Cue().needs_all_rows() == "method.logit_prior=test (not train+test)"
    assert Cue().trains_together()
    own = Cue(logit_prior="train+test")
    assert own.needs_all_rows() == ""
    assert not own.trains_together()
    table = federation(own, images=8).host.table
    assert (table["head"].rows, table["head_bias"].rows, table["prompts"].rows) == (0, 0, None)


def test_prompts_for_more_blocks_than_there_are_are_refused(federation):
    sizes = federation(Cue(), images=8).sizes
    Cue(blocks=8).check(sizes)
    with pytest.raises(ConfigError, match="more than the backbone has: 8"):
        Cue(blocks=9).check(sizes)


def test_a_random_head_is_the_ablation(federation):
    states = [federation(Cue(head_init=kind)).start().tensors["head"] for kind in ("prototypes", "random")]
    assert states[0].norm() != states[1].norm()
    first = federation(Cue()).host.table.first(0)["head"]
    assert torch.equal(states[1], first)


def test_for_a_random_head_nobody_is_asked_for_anything(federation):
    tiny = federation(Cue(head_init="random"), images=8)
    assert tiny.host.table.replied == ()
    assert "centroids" not in tiny.host.table.kinds
    assert not tiny.method.warm_up(tiny.client(0))
    assert tiny.host.warm_up(0) is None


def test_mixed_prompts_on_top_of_cue_have_a_slot_that_lasts(federation):
    variant = importlib.import_module("cue_variants").Mixed(layers=(1, 2))
    tiny = federation(variant, images=8)
    tensors, batch = tiny.start().tensors, tiny.batch(0)
    insert, tokens = variant.prompter(tensors, batch), torch.randn(8, 6, 32)
    cue = Cue.prompter(variant, tensors, batch)
    lengths = {}
    for block in range(4):
        put = insert(block, tokens)
        behind = tokens[:, 1 + put.tokens.shape[1] :] if put.overwrite else tokens[:, 1:]
        before, tokens = tokens, torch.cat([tokens[:, :1], put.tokens, behind], 1)
        lengths[block] = tokens.shape[1]
        if block != 1:  # cue's own prompt is the block's
            torch.testing.assert_close(tokens[:, 1 + (block > 1)], cue(block, before).tokens[:, 0])
    assert lengths == {0: 7, 1: 8, 2: 8, 3: 8}
    torch.testing.assert_close(tokens[:, 1], before[:, 1])  # after the last mixed block it flows on


@pytest.mark.parametrize("name", ["Mixed", "MixedByLayer"])
def test_mixed_prompts_of_classes_a_client_does_not_hold_stay_as_they_are(federation, name):
    kind = getattr(importlib.import_module("cue_variants"), name)
    tiny = federation(kind(layers=(1, 2), logit_prior="train+test"), images=8)
    state = tiny.start()
    update, _ = tiny.update(state, 0)  # of classes 0 and 1
    moved = (update.tensors["class_prompts"] != state.tensors["class_prompts"]).any(-1)
    assert moved.view(-1, 4).any(0).tolist() == [True, True, False, False]


@pytest.mark.parametrize("name", ["Tied", "Momentum", "Scaled"])
def test_the_other_variants_run_and_learn(federation, name):
    kind = getattr(importlib.import_module("cue_variants"), name)
    run = federation(kind(), images=8).run(2)
    assert run.state.round == 2
    assert set(run.state.tensors) == {spec.name for spec in run.tiny.host.table if spec.stored}
    assert run.accuracy(0) > 0.5
