"""FedVPT: shared prompts behind cls at block 0."""

from __future__ import annotations

import torch

from fedcue.methods.fedvpt import FedVPT
from fedcue.types import Sizes


def test_order_of_prompts_does_not_matter(federation):
    tiny = federation(FedVPT(prompts=5))
    tensors, batch = tiny.start().tensors, tiny.batch(0, 4)
    expected = tiny.method.logits(tensors, batch)
    turned = {**tensors, "shared_prompts": tensors["shared_prompts"].roll(2, 0)}
    torch.testing.assert_close(tiny.method.logits(turned, batch), expected)


def test_prompts_go_behind_cls_at_block_0_and_nowhere_else(federation):
    tiny = federation(FedVPT(prompts=3))
    tensors, batch = tiny.start().tensors, tiny.batch(0, 2)
    insert = tiny.method.prompter(tensors, batch)
    first = insert(0, torch.zeros(2, 5, 32))
    assert torch.equal(first.tokens, tensors["shared_prompts"])
    assert not first.overwrite
    assert [insert(block, torch.zeros(2, 8, 32)) for block in range(1, 8)] == [None] * 7


def test_initial_prompts_follow_vpt():
    sizes = Sizes(classes=100, width=768, depth=12, patch=16, clients=100)
    prompts = FedVPT(prompts=50).table(sizes).first(0)["shared_prompts"]
    assert 0.06 < prompts.abs().max() <= 0.0625
    assert abs(prompts.std().item() - 0.0625 / 3**0.5) < 1e-3
    assert not FedVPT(prompt_init="zeros").table(sizes).first(0)["shared_prompts"].any()
