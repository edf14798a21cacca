"""SGPT: two stages, groups chosen by keys, tokens that accumulate, counters frozen within a round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.tiny_federation import TinyFederation, added, random_vit

from fedcue.errors import ConfigError
from fedcue.methods.sgpt import RARE, SGPT, first_keys
from fedcue.model.prompted import inserted, no_prompts
from fedcue.model.vit import Architecture
from fedcue.rng import torch_rng
from fedcue.train.settings import Training
from fedcue.types import Sizes, Update

SIZES = Sizes(4, 8, 8, 4, 4)


def stages(tiny: TinyFederation) -> list:
    """Run one visit; return what each stage started from, came to, and the visit's update."""
    seen, fit = [], tiny.host.loop

    def watched(loss, start, *rest):
        trained, value = fit(loss, start, *rest)
        seen.append((dict(start), trained, value))
        return trained, value

    tiny.host.loop = watched
    update, _ = tiny.update(tiny.start(), 0)
    return [*seen, update]


def test_first_stage_leaves_groups_and_keys_second_leaves_shared_prompts():
    tiny = TinyFederation(SGPT(head_bias=True))
    first, second, update = stages(tiny)
    assert set(first[0]) == {"head", "head_bias", "shared_prompts"}
    assert set(second[0]) == {"head", "head_bias", "group_prompts", "keys"}
    assert torch.equal(second[0]["group_prompts"], tiny.start().tensors["group_prompts"])
    assert torch.equal(second[0]["keys"], tiny.start().tensors["keys"])
    assert torch.equal(update.tensors["shared_prompts"], first[1]["shared_prompts"])
    assert torch.equal(second[0]["head"], first[1]["head"])
    assert not torch.equal(update.tensors["group_prompts"], second[0]["group_prompts"])
    assert not torch.equal(update.tensors["keys"], second[0]["keys"])


def test_first_stage_does_not_use_the_groups():
    tiny = TinyFederation(SGPT())
    state = tiny.start()
    other = replace(state, tensors={**state.tensors, "group_prompts": torch.randn(3, 20, 32)})
    assert tiny.update(state, 0)[0].loss == tiny.update(other, 0)[0].loss


@pytest.mark.parametrize(("prompts", "after_shared"), [(1, 201), (5, 205)])
def test_tokens_accumulate_to_201_and_204(prompts, after_shared):
    shape = Architecture(width=24, depth=12, heads=2, patch=2, image_size=28, hidden=24)
    assert shape.tokens == 197
    model, method = random_vit(shape), SGPT(prompts=prompts)
    tensors = method.table(Sizes(4, 24, 12, 2, 4)).first(0)
    lengths = {}
    inner = method._tokens(tensors, torch.tensor([3, 7]))

    def watch(block, tokens):
        lengths[block] = tokens.shape[1]
        return inserted(inner)(block, tokens)

    pixels = torch.zeros(2, 3, 28, 28, dtype=torch.uint8)
    features = model.features(model.prefix(pixels), watch, read=4)
    assert lengths[0] == 197
    assert lengths[4] == after_shared
    assert lengths[7] == lengths[11] == after_shared + 3
    assert features.shape == (2, 4, 24)


def test_head_reads_cls_and_the_group_tokens():
    tiny = TinyFederation(SGPT())
    tensors = tiny.start().tensors
    batch = tiny.batch(0, 4)
    prompter = tiny.method.prompter(tensors, batch)
    tokens = tiny.model.features(batch.inputs, prompter, read=100)
    expected = F.linear(tokens[:, :4].mean(1), tensors["head"])
    torch.testing.assert_close(tiny.method.logits(tensors, batch), expected)
    groups = tiny.method.inspect(tensors, batch)["groups"].argmax(1)
    newest = prompter(6, torch.zeros(4, 10, 32)).tokens[:, 0]
    assert torch.equal(newest, tensors["group_prompts"][2][groups])


def test_keys_are_orthonormal_and_shared_prompts_zero():
    tensors = TinyFederation(SGPT()).start().tensors
    torch.testing.assert_close(tensors["keys"] @ tensors["keys"].T, torch.eye(20), atol=1e-6, rtol=0)
    assert not tensors["shared_prompts"].any()
    assert tensors["shared_prompts"].shape == (4, 32)
    assert tensors["group_prompts"].shape == (3, 20, 32)


def test_first_keys_are_gram_schmidt_of_a_draw_within_xaviers_bound():
    rows = (torch.rand(3, 5, generator=torch_rng(4, "init", "keys")) * 2 - 1).double()
    expected = []
    for row in rows:
        for done in expected:
            row = row - (row @ done) * done
        expected.append(row / row.norm())
    found = first_keys((3, 5), 4).double()
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("block", [None, 6])
def test_query_is_the_bare_vits_normalised_cls(block):
    tiny = TinyFederation(SGPT(query_block=block))
    batch = tiny.batch(0, 4)
    keys = tiny.start().tensors["keys"]
    cls = tiny.model.cls_tokens(batch.inputs, no_prompts, (block or 8,))[:, 0]
    query = F.relu(F.layer_norm(cls, (32,), *tiny.model.backbone.norm.parameters(), eps=1e-6))
    torch.testing.assert_close(
        tiny.method._similarity(keys, batch), F.cosine_similarity(query[:, None], keys, dim=-1)
    )


def test_test_time_choice_ignores_counters_and_client():
    tiny = TinyFederation(SGPT())
    state = tiny.start()
    used = {**state.tensors, "counts": torch.randint(0, 999, (20,))}
    batch = tiny.batch(0, 8)
    plain = tiny.method.predict(state.tensors, batch)
    assert torch.equal(tiny.method.predict(used, batch), plain)
    unseen = replace(batch, log_priors=torch.zeros(4))
    assert torch.equal(tiny.method.predict(state.tensors, unseen), plain)


def test_training_prefers_rarely_used_groups():
    tiny = TinyFederation(SGPT(), training=Training(lr=0.0, epochs=1, batch_size=16))
    state = tiny.start()
    plain = tiny.update(state, 0)[0].tensors["counts"]
    assert plain.sum() == 16
    worn = replace(state, tensors={**state.tensors, "counts": plain * 1000})
    other = tiny.update(worn, 0)[0].tensors["counts"]
    assert not (other.bool() & plain.bool()).any()


class Seen(SGPT):
    """SGPT whose images are as near to the two groups as the table says."""

    def _similarity(self, keys, batch):
        near = torch.tensor([[1 - 3e-4, 0.0], [1 - 7e-4, 0.0], [0.1, 0.9], [0.0, 0.5]])
        return near + 0 * keys.sum()


@pytest.mark.parametrize(
    ("used", "chosen"),
    [
        ([0, 0], [2, 2]),  # each image takes the nearest
        ([10, 0], [1, 3]),  # shares 1.0005 and 0.0005: the second image, too, leaves the used group
        ([1000, 0], [1, 3]),  # it is the share that counts, not the number
        ([0, 10], [4, 0]),
    ],
)
def test_each_image_takes_the_group_that_is_nearest_by_its_share_of_past_use(used, chosen):
    method = Seen(groups=2)
    tiny = TinyFederation(method)
    fixed = {**tiny.host.table.first(0), "counts": torch.tensor(used)}
    counts = torch.zeros(2, dtype=torch.int64)
    method._group_loss(fixed, counts)(fixed, tiny.batch(0, 4))
    assert counts.tolist() == chosen


def test_with_batch_majority_all_images_take_the_group_that_most_of_them_choose():
    method = Seen(groups=2, batch_majority=True)
    tiny = TinyFederation(method)
    fixed = {**tiny.host.table.first(0), "counts": torch.tensor([10, 0])}
    counts = torch.zeros(2, dtype=torch.int64)
    method._group_loss(fixed, counts)(fixed, tiny.batch(0, 4))
    assert counts.tolist() == [0, 4], "the first image alone would take the other one"


def test_in_testing_each_image_takes_the_group_whose_key_is_nearest():
    method = Seen(groups=2)
    tiny = TinyFederation(method)
    first, batch = tiny.host.table.first(0), tiny.batch(0, 4)
    assert method.inspect(first, batch)["groups"].argmax(1).tolist() == [0, 0, 1, 1]
    expected = method._logits(first, batch, torch.tensor([0, 0, 1, 1]))
    assert torch.equal(method.logits(first, batch), expected)


def test_each_image_is_classified_with_its_own_groups_prompts():
    tiny = TinyFederation(SGPT(groups=3))
    state, batch = tiny.start().tensors, tiny.batch(0, 4)
    groups = torch.tensor([2, 0, 2, 1])
    together = tiny.method._logits(state, batch, groups)
    for image, group in enumerate(groups.tolist()):
        alone = tiny.method._logits(state, batch, torch.full((4,), group))[image]
        torch.testing.assert_close(together[image], alone)


def test_counts_are_per_sample_and_epoch_and_added_at_the_server():
    tiny = TinyFederation(SGPT())
    run = tiny.run(2)
    assert all(update.tensors["counts"].sum() == 2 * 16 for update in run.updates[0])
    total = sum(update.tensors["counts"] for updates in run.updates for update in updates)
    assert torch.equal(run.state.tensors["counts"], total)


def test_counters_are_frozen_within_a_round():
    tiny = TinyFederation(SGPT())
    run = tiny.run(1)
    alone = tiny.update(tiny.start(), 2)[0]
    assert torch.equal(run.updates[0][2].tensors["counts"], alone.tensors["counts"])


def test_batch_majority_trains_each_batch_with_one_group():
    tiny = TinyFederation(SGPT(batch_majority=True), training=Training(lr=0.0, epochs=1, batch_size=8))
    counts = tiny.update(tiny.start(), 0)[0].tensors["counts"]
    assert set(counts.tolist()) <= {0, 8, 16}


def test_key_term_pulls_the_chosen_keys_towards_the_queries():
    tiny = TinyFederation(SGPT(), training=Training(lr=0.1, weight_decay=0.0, epochs=3, batch_size=16))
    state = tiny.start()
    batch = tiny.batch(0, 16)
    keys = tiny.update(state, 0)[0].tensors["keys"]
    before, after = (tiny.method._similarity(k, batch).amax(1).mean() for k in (state.tensors["keys"], keys))
    assert after > before + 0.05


def made_up(client: int, value: float, counts: list[int], samples: int = 10) -> Update:
    """Return an update whose tensors all hold ``value``."""
    tensors = SGPT(groups=3).table(SIZES).first(0)
    filled = {name: torch.full_like(tensor, value) for name, tensor in tensors.items() if name != "counts"}
    return Update(client, samples, {**filled, "counts": torch.tensor(counts)})


def test_server_weighs_keys_by_choices_unless_they_are_rare():
    method = SGPT(groups=3, momentum=0.5, key_momentum=0.0)
    state = method.start(SIZES, 0, added(method, SIZES, []))
    updates = [made_up(0, 1.0, [90, 50, 0]), made_up(1, 3.0, [10, 0, 51])]
    new = method.aggregate(state, added(method, SIZES, updates)).tensors
    expected = torch.tensor([1.2, 2.0, 3.0])[:, None].expand(3, 8)
    torch.testing.assert_close(new["keys"], expected)
    torch.testing.assert_close(new["head"], torch.full((4, 8), 2.0))
    torch.testing.assert_close(new["shared_prompts"], torch.full((4, 8), 2.0))
    torch.testing.assert_close(new["group_prompts"], 0.5 * state.tensors["group_prompts"] + 0.5 * 2.0)
    assert new["counts"].tolist() == [100, 50, 51]


def test_a_group_chosen_at_most_fifty_times_is_rare():
    assert RARE == 50


def test_group_prompts_and_keys_have_momenta_of_their_own():
    method = SGPT(groups=3, momentum=0.9, key_momentum=0.2)
    state = method.start(SIZES, 0, added(method, SIZES, []))
    new = method.aggregate(state, added(method, SIZES, [made_up(0, 1.0, [0, 0, 0])])).tensors
    torch.testing.assert_close(new["group_prompts"], 0.9 * state.tensors["group_prompts"] + 0.1)
    torch.testing.assert_close(new["keys"], 0.2 * state.tensors["keys"] + 0.8)


def test_server_momentum_of_keys_and_sizes_as_weights():
    method = SGPT(groups=3, weighting="size")
    state = method.start(SIZES, 0, added(method, SIZES, []))
    updates = [made_up(0, 1.0, [0, 0, 0], samples=30), made_up(1, 3.0, [0, 0, 0], samples=10)]
    new = method.aggregate(state, added(method, SIZES, updates)).tensors
    torch.testing.assert_close(new["head"], torch.full((4, 8), 1.5))
    torch.testing.assert_close(new["keys"], 0.5 * state.tensors["keys"] + 0.5 * 2.0)


def test_too_small_a_backbone_is_refused():
    for method in (SGPT(shared_blocks=6), SGPT(groups=33), SGPT(query_block=9)):
        with pytest.raises(ConfigError, match="SGPT needs"):
            method.check(TinyFederation(SGPT()).sizes)
    for method in (SGPT(shared_blocks=5), SGPT(groups=32), SGPT(query_block=8)):
        method.check(TinyFederation(SGPT()).sizes)
