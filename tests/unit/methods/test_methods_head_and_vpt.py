"""Head-Tuning, FedVPT and FedVPT-D."""

from __future__ import annotations

import pytest
import torch

from fedcue.errors import ConfigError
from fedcue.methods.fedvpt import FedVPT
from fedcue.methods.fedvpt_deep import FedVPTDeep
from fedcue.methods.head import HeadTuning
from fedcue.model.prompted import Insertion
from fedcue.model.prompts import deep


def test_head_tuning_from_kept_features_is_exact(federation):
    kept = federation(HeadTuning())
    computed = federation(HeadTuning())
    assert next(iter(kept.samples(0).batches(4))).inputs.block == kept.model.depth
    samples = computed.samples

    def from_block_0(client):
        found = samples(client)
        found.frozen.whole = found.frozen.start
        return found

    computed.samples = from_block_0
    assert next(iter(computed.samples(0).batches(4))).inputs.block == 0
    first, second = kept.run(2).state.tensors["head"], computed.run(2).state.tensors["head"]
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-5)


def watched_lengths(model, method, tensors, batch):
    """Return the number of tokens each block computes with."""
    lengths = []
    inner = method.prompter(model, tensors, batch)

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
    batch = next(iter(tiny.samples(0).batches(2)))
    lengths = watched_lengths(tiny.model, tiny.method, state.tensors, batch)
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
        FedVPTDeep(blocks=9).check(tiny.setting)


def test_one_deep_block_is_shallow_prompting(federation):
    shallow, deeper = federation(FedVPT(prompts=2)), federation(FedVPTDeep(prompts=2, blocks=1))
    tensors = shallow.start().tensors
    batch = next(iter(shallow.samples(0).batches(4)))
    expected = shallow.method.logits(shallow.model, tensors, batch)
    tensors = {"head": tensors["head"], "deep_prompts": tensors["shared_prompts"][None]}
    assert torch.equal(deeper.method.logits(deeper.model, tensors, batch), expected)


def test_order_of_prompts_does_not_matter(federation):
    tiny = federation(FedVPT(prompts=5))
    tensors = tiny.start().tensors
    batch = next(iter(tiny.samples(0).batches(4)))
    expected = tiny.method.logits(tiny.model, tensors, batch)
    turned = {**tensors, "shared_prompts": tensors["shared_prompts"].roll(2, 0)}
    torch.testing.assert_close(tiny.method.logits(tiny.model, turned, batch), expected)


def test_initial_prompts_follow_vpt():
    from fedcue.types import Sizes

    setting = Setting(classes=100, width=768, depth=12, patch=16, clients=100)
    prompts = FedVPT(prompts=50).initial(setting, 0)["shared_prompts"]
    assert 0.06 < prompts.abs().max() <= 0.0625
    assert abs(prompts.std().item() - 0.0625 / 3**0.5) < 1e-3
