"""NCM and Cue: heads made of class means, and rows of other classes that stay where they are."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcue.aggregate.class_means import SHRINKAGE, prototype_head, second_moments, whitening
from fedcue.methods.cue import Cue
from fedcue.methods.ncm import NCM
from fedcue.model.prompted import no_prompts
from fedcue.model.prompts import shallow
from fedcue.train.settings import Training

CLIENTS = range(3)  # the fourth one of the tiny federation is held out


def features_and_labels(tiny) -> tuple[np.ndarray, np.ndarray]:
    """Return the bare backbone's final cls tokens of all training images."""
    parts = []
    for client in CLIENTS:
        samples = tiny.samples(client)
        batch = next(samples.batches(len(samples)))
        parts.append((tiny.model.features(batch.inputs, no_prompts)[:, 0], batch.labels))
    return tuple(torch.cat(part).double().numpy() for part in zip(*parts, strict=True))


def expected_head(x: np.ndarray, labels: np.ndarray, scale: float, whiten: bool) -> dict[str, np.ndarray]:
    """Compute the head from the images themselves, all in one place."""
    means = np.stack([x[labels == c].mean(0) for c in range(4)])
    transform = np.eye(x.shape[1])
    if whiten:
        within = x - means[labels.astype(int)]
        spread = within.T @ within / (len(x) - 4)
        even = np.eye(len(spread)) * np.trace(spread) / len(spread)
        transform = np.linalg.inv(np.linalg.cholesky((1 - SHRINKAGE) * spread + SHRINKAGE * even))
    centre = means.mean(0)
    rows = (means - centre) @ transform.T
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    head = scale / lengths.mean() * (rows / lengths) @ transform
    return {"head": head, "head_bias": -head @ centre}


@pytest.mark.parametrize("whiten", [False, True])
def test_ncm_is_the_head_of_all_images_class_means(federation, whiten):
    tiny = federation(NCM(whiten=whiten, scale=3.0))
    expected = expected_head(*features_and_labels(tiny), 3.0, whiten)
    for name, tensor in tiny.start().tensors.items():
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=2e-3, atol=2e-3)


def test_cue_takes_its_prototypes_under_its_first_prompts(federation):
    tiny = federation(Cue(scale=3.0, blocks=1))
    start, parts = tiny.start().tensors, []
    for client in CLIENTS:
        batch = next(tiny.samples(client).batches(100))
        prompter = shallow(batch.inputs.tokens[0, :1] + start["prompts"][0])
        parts.append((tiny.model.features(batch.inputs, prompter)[:, 0], batch.labels))
    x, labels = (torch.cat(part).double().numpy() for part in zip(*parts, strict=True))
    for name, expected in expected_head(x, labels, 3.0, whiten=True).items():
        np.testing.assert_allclose(start[name].numpy(), expected, rtol=5e-3, atol=5e-3)


def test_ncm_has_no_rounds_whatever_is_asked_for():
    from fedcue.config.layers import load

    assert load("default", ["method=ncm", "rounds=7"]).rounds == 0
    assert load("default", ["method=cue", "rounds=7"]).rounds == 7


def test_a_class_nobody_holds_has_the_logit_zero():
    prototypes, known = torch.randn(3, 5), torch.tensor([True, False, True])
    head = prototype_head(prototypes, known, 10.0)
    logits = torch.randn(7, 5) @ head["head"].T + head["head_bias"]
    assert torch.equal(logits[:, 1], torch.zeros(7))
    assert logits[:, [0, 2]].abs().min() > 0


def test_moments_can_be_added_up_over_clients():
    x = torch.randn(10, 4, dtype=torch.float64)
    lower = torch.tril_indices(x.shape[1], x.shape[1])
    torch.testing.assert_close(second_moments([x[:3], x[3:]]), (x.T @ x).float()[lower[0], lower[1]])


def test_whitening_makes_the_spread_within_classes_even():
    generator = torch.Generator().manual_seed(0)
    labels, shape = torch.arange(3000) % 3, torch.diag(torch.tensor([5.0, 1.0, 0.5, 2.0]))
    x = torch.randn(3000, 4, generator=generator) @ shape + 3 * labels[:, None]
    counts = torch.bincount(labels)
    means = torch.stack([x[labels == c].mean(0) for c in range(3)])
    white = (x - means[labels]) @ whitening(second_moments([x]), means, counts).T
    spreads, before = white.var(0), (x - means[labels]).var(0)
    assert before.max() / before.min() > 80
    assert spreads.max() / spreads.min() < 5


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
    tensors, batch = tiny.start().tensors, next(tiny.samples(0).batches(8))
    insert, tokens = tiny.method.prompter(tiny.model, tensors, batch), torch.randn(8, 10, 32)
    for block in (0, 1):
        inserted = insert(block, tokens)
        difference = tensors["prompts"][block].expand(8, -1, -1)
        torch.testing.assert_close(inserted.tokens - difference, tokens[:, :1].expand(-1, 3, -1))
        assert inserted.overwrite is (block > 0)
    assert insert(2, tokens) is None
    assert tiny.run(1).state.tensors["prompts"].shape == (2, 3, 32)


def test_a_random_head_is_the_ablation(federation):
    states = [federation(Cue(head_init=kind)).start().tensors["head"] for kind in ("prototypes", "random")]
    assert states[0].norm() != states[1].norm()


def test_for_a_random_head_nobody_is_asked_for_anything(federation):
    tiny = federation(Cue(head_init="random"), images=8)
    assert tiny.method.replied() == ()
    assert "centroids" not in tiny.method.kinds()
    assert tiny.method.warm_up(tiny.visit(0)) is None


def test_mixed_prompts_on_top_of_cue_have_a_slot_that_lasts(federation, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    variant = importlib.import_module("cue_variants").Mixed(layers=(1, 2))
    tiny = federation(variant, images=8)
    tensors, batch = tiny.start().tensors, next(tiny.samples(0).batches(8))
    insert, tokens = variant.prompter(tiny.model, tensors, batch), torch.randn(8, 6, 32)
    cue = Cue.prompter(variant, tiny.model, tensors, batch)
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


def test_mixed_prompts_of_classes_a_client_does_not_hold_stay_as_they_are(federation, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    variants = importlib.import_module("cue_variants")
    for kind in (variants.Mixed, variants.MixedByLayer):
        tiny = federation(kind(layers=(1, 2), logit_prior="train+test"), images=8)
        state = tiny.start()
        update, _ = tiny.update(state, 0)  # of classes 0 and 1
        moved = (update.tensors["class_prompts"] != state.tensors["class_prompts"]).any(-1)
        assert moved.view(-1, 4).any(0).tolist() == [True, True, False, False]
