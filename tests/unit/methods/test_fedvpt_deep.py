"""FedVPT-D: each block has prompts of its own in the same slots."""

from __future__ import annotations

import pytest
import torch

from fedcue.errors import ConfigError
from fedcue.methods.fedvpt import FedVPT
from fedcue.methods.fedvpt_deep import FedVPTDeep
from fedcue.model.prompted import Insertion, deep


def watched_lengths(model, method, tensors, batch):
    """Return the number of tokens each block computes with."""
    lengths = []
    inner = method.prompter(tensors, batch)

    def watch(block, tokens):
        insertion = inner(block, tokens)
        added = 0 if insertion is None or insertion.overwrite else insertion.tokens.shape[-2]
        lengths.append(tokens.shape[1] + added)
        return insertion

    model.features(batch.inputs, watch)
    return lengths


@pytest.mark.parametrize("prompts", [1, 3])
def test_deep_prompts_keep_the_sequence_length_constant(prompts, federation):
    tiny = federation(FedVPTDeep(prompts=prompts))
    state = tiny.start()
    lengths = watched_lengths(tiny.model, tiny.method, state.tensors, tiny.batch(0, 2))
    assert lengths == [tiny.model.architecture.tokens + prompts] * tiny.model.depth
    assert state.tensors["deep_prompts"].shape == (8, prompts, 32)


def test_deep_prompts_replace_the_previous_blocks_output():
    prompts = torch.randn(3, 1, 4)
    insertions = [deep(prompts)(block, torch.zeros(2, 5, 4)) for block in range(4)]
    assert [i and i.overwrite for i in insertions] == [False, True, True, None]
    assert all(
        isinstance(i, Insertion) and torch.equal(i.tokens, p)
        for i, p in zip(insertions[:3], prompts, strict=True)
    )


def test_fewer_blocks_leave_the_rest_without_prompts_of_their_own(federation):
    tiny = federation(FedVPTDeep(blocks=5))
    assert tiny.start().tensors["deep_prompts"].shape == (5, 1, 32)
    with pytest.raises(ConfigError, match="more than the backbone has: 8"):
        FedVPTDeep(blocks=9).check(tiny.sizes)
    FedVPTDeep(blocks=8).check(tiny.sizes)


def test_one_deep_block_is_shallow_prompting(federation):
    shallow, deeper = federation(FedVPT(prompts=2)), federation(FedVPTDeep(prompts=2, blocks=1))
    tensors, batch = shallow.start().tensors, shallow.batch(0, 4)
    expected = shallow.method.logits(tensors, batch)
    tensors = {"head": tensors["head"], "deep_prompts": tensors["shared_prompts"][None]}
    assert torch.equal(deeper.method.logits(tensors, batch), expected)
