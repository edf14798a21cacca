"""PEP-FedPT's ablations: each switch changes what it says, and the defaults are the paper's method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.tiny_federation import added

from fedcue.errors import ConfigError
from fedcue.methods.pep import PEP
from fedcue.methods.pep_variants import PEPVariants
from fedcue.types import Update

LABELS = [[0, 0, 0, 1], [0, 1, 1, 1, 2], [1, 2], [3, 0]]
"""Client 0 has three images of class 0, client 1 has one."""


def test_with_its_defaults_it_is_the_paper_method_bit_for_bit(federation):
    runs = [federation(kind(), images=8).run(2) for kind in (PEP, PEPVariants)]
    first, second = (run.state.tensors for run in runs)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(runs[0].predict(3), runs[1].predict(3))


@pytest.mark.parametrize("weight", ["uniform", "count"])
def test_centroids_weigh_alike_or_by_their_images_before_round_0(federation, weight):
    plain = federation(PEPVariants(), labels=LABELS).run(0)
    means = [reply.tensors["centroids"] for reply in plain.replies]
    found = federation(PEPVariants(prototype_weight=weight), labels=LABELS).run(0).state.tensors
    shares = {"uniform": ((1, 1), (1, 1, 1)), "count": ((3, 1), (1, 3, 1))}[weight]
    expected = (shares[0][0] * means[0][:, 0] + shares[0][1] * means[1][:, 0]) / sum(shares[0])
    torch.testing.assert_close(found["prototypes"][:, 0], expected)
    expected = sum(s * mean[:, 1] for s, mean in zip(shares[1], means, strict=True)) / sum(shares[1])
    torch.testing.assert_close(found["prototypes"][:, 1], expected)


@pytest.mark.parametrize("weight", ["uniform", "count"])
def test_centroids_weigh_alike_or_by_their_images_in_rounds(federation, weight):
    tiny = federation(PEPVariants(prototype_weight=weight, period=1, momentum=0.0), labels=LABELS)
    state = tiny.start()
    updates = [tiny.update(state, client)[0] for client in (0, 1)]
    means = [
        update.tensors["centroids"]
        / (update.tensors["holds"].clamp(min=1)[:, None] if weight == "count" else 1)
        for update in updates
    ]
    first, second = (3, 1) if weight == "count" else (1, 1)
    expected = (first * means[0][:, 0] + second * means[1][:, 0]) / (first + second)
    found = tiny.aggregate(state, updates).tensors["prototypes"][:, 0]
    torch.testing.assert_close(found, expected)
    counts = updates[0].tensors["holds"].tolist()
    assert counts == ([3, 1, 0, 0] if weight == "count" else [True, True, False, False])


def test_the_literal_first_mean_divides_by_all_clients(federation):
    run = federation(PEPVariants(initial_mean="literal"), images=8).run(0)
    total = sum(reply.tensors["centroids"] for reply in run.replies)
    torch.testing.assert_close(run.state.tensors["prototypes"], total / 3)
    assert run.state.tensors["has_prototype"].all()
    assert run.state.round == 0
    fewer = added(run.tiny.method, run.tiny.sizes, run.replies[:1])
    alone = run.tiny.method.start(run.tiny.sizes, 0, fewer).tensors
    assert alone["has_prototype"].tolist() == [True, True, False, False]
    torch.testing.assert_close(alone["prototypes"], run.replies[0].tensors["centroids"])


def test_without_priors_all_classes_are_mixed_alike(federation):
    tiny = federation(PEPVariants(prior="uniform"), images=8)
    tensors = tiny.personal(tiny.start(), 0)
    assert tensors["classes"].tolist() == [0, 1, 2, 3]
    weights = tiny.method.inspect(tensors, tiny.batch(0))["mixing_weights"]
    assert (weights > 0).all()
    flat = federation(PEPVariants(prior="uniform", temperature=1e9), images=8)
    weights = flat.method.inspect(flat.personal(flat.start(), 0), flat.batch(0))["mixing_weights"]
    torch.testing.assert_close(weights, torch.full_like(weights, 0.25))
    assert PEPVariants(prior="uniform").needs_all_rows() == "method.prior=uniform"
    assert PEPVariants().needs_all_rows() == ""


def test_without_priors_each_class_has_an_even_share_of_one():
    for log_priors in (torch.zeros(3), torch.zeros(5, 3)):
        even = PEPVariants(prior="uniform")._priors(log_priors)
        torch.testing.assert_close(even, torch.full_like(log_priors, 1 / 3).log())
        assert PEPVariants()._priors(log_priors) is log_priors


def test_a_class_prompt_that_nobody_held_stays_where_it_was(federation):
    tiny = federation(PEPVariants(class_average="holders"), images=8)
    state = tiny.start()
    found = tiny.aggregate(state, [tiny.update(state, 0)[0]]).tensors["class_prompts"]
    assert torch.equal(found[2:], state.tensors["class_prompts"][2:])
    assert not torch.equal(found[:2], state.tensors["class_prompts"][:2])


def test_with_bare_scores_clients_train_one_by_one():
    assert PEPVariants().trains_together()
    assert not PEPVariants(score_source="bare").trains_together()


def test_a_class_without_prototype_has_the_cosine_zero_if_asked_for(federation):
    tiny = federation(PEPVariants(zero_prototype="zero", temperature=0.5), images=8)
    tensors = tiny.personal(tiny.start(), 0)
    tensors["has_prototype"] = torch.tensor([True, False])
    batch = replace(tiny.batch(0, 4), log_priors=torch.tensor([0.8, 0.2, 0.0, 0.0]).log())
    cls = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    cosine = torch.nn.functional.cosine_similarity(cls, tensors["prototypes"][0, 0][None])
    own = torch.tensor([0.8, 0.2]).log()
    expected = torch.softmax(torch.stack([cosine, torch.zeros(4)], 1) / 0.5 + own, -1)
    torch.testing.assert_close(tiny.method.scores(tensors, batch, 0, cls), expected)
    neutral = PEPVariants(temperature=0.5).scores(tensors, batch, 0, cls)
    torch.testing.assert_close(neutral, own.exp().expand(4, 2))  # that of the other class


def test_detached_scores_have_values_and_no_gradient(federation):
    cls = torch.randn(4, 32, generator=torch.Generator().manual_seed(1), requires_grad=True)
    found = []
    for detach in (True, False):
        tiny = federation(PEPVariants(detach_scores=detach), images=8)
        tensors = tiny.personal(tiny.start(), 0)
        found.append(tiny.method.scores(tensors, tiny.batch(0, 4), 0, cls))
    assert torch.equal(*found)
    assert [scores.requires_grad for scores in found] == [False, True]


def test_scores_of_bare_tokens_do_not_hang_on_prompts(federation):
    for source in ("bare", "prompted"):
        tiny = federation(PEPVariants(score_source=source), images=8)
        tensors, batch = tiny.personal(tiny.start(), 0), tiny.batch(0)
        other = {**tensors, "shared_prompts": tensors["shared_prompts"] + 1}
        weights = [tiny.method.inspect(t, batch)["mixing_weights"] for t in (tensors, other)]
        assert torch.equal(*weights) is (source == "bare")


@pytest.mark.parametrize(("mode", "lengths"), [("replace", [8, 8, 8]), ("accumulate", [8, 9, 10])])
def test_mixed_tokens_take_one_slot_or_add_up(federation, mode, lengths):
    tiny = federation(PEPVariants(ccmp_mode=mode, prompts=2), images=8)
    tensors, batch = tiny.personal(tiny.start(), 0), tiny.batch(0, 2)
    insert, seen = tiny.method.prompter(tensors, batch), []

    def watch(block, tokens):
        put = insert(block, tokens)
        if block in (4, 5, 6):
            seen.append(tokens.shape[1] + (0 if put.overwrite else put.tokens.shape[1]))
        return put

    tiny.model.features(batch.inputs, watch)
    assert seen == lengths


def test_prompts_can_start_with_zeros(federation):
    tensors = federation(PEPVariants(prompt_init="zeros"), images=8).host.table.first(0)
    assert not tensors["shared_prompts"].any()
    assert not tensors["class_prompts"].any()
    assert tensors["head"].any()


@pytest.mark.parametrize("average", ["all", "holders"])
def test_a_class_prompt_moves_by_the_mean_of_all_clients_or_of_its_holders(federation, average):
    """Class 0 is held by client 0 alone, class 1 by clients 0 and 1, of three that are drawn."""
    tiny = federation(PEPVariants(class_average=average), images=8)
    state = tiny.start()
    updates = [tiny.update(state, client)[0] for client in range(3)]
    old = state.tensors["class_prompts"]
    changes = [update.tensors["class_prompts"] - old for update in updates]
    found = tiny.aggregate(state, updates).tensors["class_prompts"] - old
    assert not changes[1][0].any()
    for c, holders in ((0, 1), (1, 2), (2, 2), (3, 1)):
        divisor = 3 if average == "all" else holders
        torch.testing.assert_close(found[c], sum(change[c] for change in changes) / divisor)


def test_holders_are_counted_only_where_all_count_alike(federation):
    for options in ({"weighting": "size"}, {"prototype_weight": "count"}):
        method = PEPVariants(class_average="holders", **options)
        with pytest.raises(ConfigError, match="counts holders, not images"):
            method.check(federation(PEPVariants()).sizes)


def test_counts_are_whole_numbers_and_sums_go_with_them(federation):
    run = federation(PEPVariants(prototype_weight="count"), labels=LABELS).run(0)
    reply: Update = run.replies[0]
    assert reply.tensors["holds"].tolist() == [3, 1, 0, 0]
    assert run.tiny.host.table["holds"].dtype == reply.tensors["holds"].dtype == torch.int64
    plain = federation(PEPVariants(), labels=LABELS).run(0).replies[0]
    torch.testing.assert_close(reply.tensors["centroids"][:, 0], 3 * plain.tensors["centroids"][:, 0])
