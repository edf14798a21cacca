"""LoRA: what is drawn, what travels, what changes."""

from __future__ import annotations

import pytest
import torch
from support import SMALL

import fedcue
from fedcue.errors import ConfigError
from fedcue.methods.head import HeadTuning
from fedcue.methods.lora import LoRA
from fedcue.rng import torch_rng
from fedcue.types import Sizes

SIZES = Sizes(classes=4, width=32, depth=8, patch=4, clients=4)


def test_it_starts_as_head_tuning(federation):
    """B is zero at first: the backbone is as it was."""
    changed, plain = federation(LoRA(), images=8), federation(HeadTuning(), images=8)
    expected = plain.run(0).predict(0)
    assert torch.allclose(changed.run(0).predict(0), expected, atol=1e-6)
    assert not torch.allclose(changed.run(1).predict(0), plain.run(1).predict(0), atol=1e-3)


def test_a_follows_from_the_seed_alone_and_stays_as_it_is(federation):
    tiny = federation(LoRA(rank=2), images=8)
    run = tiny.run(2)
    drawn = tiny.client(1).first()["lora_a"]
    assert torch.equal(run.state.tensors["lora_a"], drawn)
    assert torch.equal(run.for_test(3)[1]["lora_a"], drawn)
    assert all(set(update.tensors) == {"head", "lora_b"} for update in run.updates[1])
    assert set(tiny.sent(run.state, 0)) == {"head", "lora_b"}
    assert not torch.equal(drawn, federation(LoRA(rank=2), images=8, seed=1).client(1).first()["lora_a"])


def test_a_is_drawn_with_a_variance_of_one_over_the_rank():
    table = LoRA(rank=4).table(Sizes(classes=4, width=768, depth=12, patch=16, clients=4))
    values = table["lora_a"].first(0)
    assert values.shape == (12, 2, 4, 768)
    assert abs(values.mean()) < 0.01
    assert values.var().item() == pytest.approx(1 / 4, rel=0.02)
    assert not table["lora_b"].first(0).any()
    drawn = torch.randn(12, 2, 4, 768, generator=torch_rng(3, "init", "lora_a")) / 2
    assert torch.equal(table["lora_a"].first(3), drawn)


def test_with_train_a_both_matrices_travel_and_move(federation):
    run = federation(LoRA(rank=2, train_a=True), images=8).run(2)
    assert all(set(update.tensors) == {"head", "lora_a", "lora_b"} for update in run.updates[1])
    assert not torch.equal(run.state.tensors["lora_a"], run.tiny.start().tensors["lora_a"])
    sent = run.tiny.sent(run.state, 0)
    assert run.tiny.method.personal(run.tiny.client(0), sent) is sent


@pytest.mark.parametrize("train_a", [False, True])
def test_the_mean_of_products_is_the_product_of_means_only_while_a_is_frozen(train_a, federation):
    run = federation(LoRA(rank=2, train_a=train_a), images=8).run(2)
    frozen = run.state.tensors["lora_a"]
    products = [update.tensors["lora_b"] @ update.tensors.get("lora_a", frozen) for update in run.updates[1]]
    mean = torch.stack(products).mean(0)
    of_means = run.state.tensors["lora_b"] @ run.state.tensors["lora_a"]
    assert torch.allclose(mean, of_means, atol=1e-6) == (not train_a)


@pytest.mark.parametrize("layers", [None, (1, 3)])
def test_only_the_chosen_blocks_change(layers, federation):
    tiny = federation(LoRA(layers=layers, rank=1), images=8)
    assert tiny.method.first_block(SIZES) == (1 if layers else 0)
    tensors = LoRA(layers=layers, rank=1).table(SIZES).first(0)
    prompter = tiny.method.prompter(tensors, None)
    assert [block for block in range(8) if prompter(block, torch.zeros(1)) is not None] == list(
        layers or range(8)
    )


def test_the_scale_is_alpha_over_rank():
    method = LoRA(layers=(2,), rank=4, alpha=6.0)
    tensors = {"lora_a": torch.randn(1, 2, 4, 32), "lora_b": torch.randn(1, 2, 32, 4)}
    change = method.prompter(tensors, None)(2, torch.zeros(1))
    weight = change.up @ change.down
    torch.testing.assert_close(weight[:32], 1.5 * tensors["lora_b"][0, 0] @ tensors["lora_a"][0, 0])
    torch.testing.assert_close(weight[64:], 1.5 * tensors["lora_b"][0, 1] @ tensors["lora_a"][0, 1])
    assert not weight[32:64].any(), "keys stay as they are"


def test_what_does_not_fit_the_backbone_is_refused():
    with pytest.raises(ConfigError, match="reach beyond the backbone"):
        LoRA(layers=(8,)).check(SIZES)
    with pytest.raises(ConfigError, match=r"method\.rank=33 is more than the backbone's width 32"):
        LoRA(rank=33).check(SIZES)
    LoRA(rank=32, layers=(7,)).check(SIZES)


def test_what_is_kept_below_the_first_changed_block_gives_what_is_computed_anew(tmp_path):
    settings = [*SMALL, "method=lora", "method.layers=[1]", "workers=1"]
    runs = [
        fedcue.run(fedcue.configure("default", [*settings, f"cache.limit_mb={room}"]), tmp_path / str(room))
        for room in (0, 4096)
    ]
    assert [run.summary["frozen_cache"] for run in runs] == ["nothing", "projected"]
    assert runs[0].rounds[-1]["train_loss"] == pytest.approx(runs[1].rounds[-1]["train_loss"], rel=1e-4)
