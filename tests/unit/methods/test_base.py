"""What holds for every method, registered or given by its import path: a new one is tested by existing."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch
from support.tiny_federation import TinyFederation, TinyRun, random_vit

from fedcue.errors import ConfigError
from fedcue.methods.base import Method, check_blocks
from fedcue.methods.client import Client
from fedcue.registry import METHODS
from fedcue.train.settings import Training
from fedcue.types import ServerState, Sizes

EVERY = pytest.mark.parametrize("name", [*METHODS.names(), "01_a_method_of_your_own:SideBySide"])


@cache
def finished(name: str) -> TinyRun:
    """Return a run of two rounds that tests may look at but not change."""
    return TinyFederation(METHODS.get(name)(), images=8).run(2)


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@EVERY
def test_it_learns(name, federation):
    run = federation(METHODS.get(name)()).run(4)
    assert run.loss(3) < max(0.9 * run.loss(0), 0.01)  # a prototype head has little left to learn here
    assert sum(run.accuracy(client, final=True) for client in range(3)) / 3 > 0.3  # of four classes


@EVERY
def test_backbone_is_bit_identical_after_training(name):
    assert same(random_vit().backbone.state_dict(), finished(name).tiny.model.backbone.state_dict())


@EVERY
def test_same_seed_same_bits_other_seed_other_bits(name, federation):
    runs = [finished(name), *(federation(METHODS.get(name)(), images=8, seed=seed).run(2) for seed in (0, 1))]
    assert same(runs[0].state.tensors, runs[1].state.tensors)
    assert runs[0].memories.keys() == runs[1].memories.keys()
    assert all(same(runs[0].memories[c].tensors, runs[1].memories[c].tensors) for c in runs[0].memories)
    starts = [{**run.tiny.start().tensors, **run.tiny.client(0).first_kept()} for run in runs]
    from_images = name in ("ncm", "fed3r", "fedcof", "cue")  # whose start does not depend on the seed
    assert same(starts[0], starts[2]) == from_images
    ends = [{**run.state.tensors, **(run.memories[0].tensors if run.memories else {})} for run in runs]
    assert from_images or not same(ends[0], ends[2])


@EVERY
def test_only_declared_tensors_travel_and_all_are_finite(name):
    run = finished(name)
    table = run.tiny.host.table
    assert set(run.tiny.sent(run.state, 0)) == set(table.sent)
    assert [len(updates) for updates in run.updates] == [3, 3]
    for update in run.updates[1]:
        assert set(update.tensors) == set(table.returned)
        assert all(torch.isfinite(tensor).all() for tensor in update.tensors.values())
        assert update.samples == 8


@EVERY
def test_memory_is_declared_and_never_sent(name):
    run = finished(name)
    table = run.tiny.host.table
    assert set(run.memories) == ({0, 1, 2} if table.kept else set())
    assert all(set(memory.tensors) == set(table.kept) for memory in run.memories.values())
    assert not {*table.sent, *table.returned, *table.replied} & set(table.kept)
    assert all(not update.kept for updates in run.updates for update in updates)


@EVERY
def test_a_client_predicts_with_what_it_kept_and_not_with_the_first_values(name):
    run = finished(name)
    tensors = run.for_test(1)[1]
    first = run.tiny.client(1).first_kept()
    for kept, value in run.memories[1].tensors.items() if 1 in run.memories else ():
        assert torch.equal(tensors[kept], value)
        assert kept.endswith("_bias") or not torch.equal(tensors[kept], first[kept])


def test_what_a_client_kept_wins_over_what_is_sent_and_both_over_first_values(federation):
    method = METHODS.get("ppt")()
    client = federation(method, images=8).client(0)
    kept, sent, first = torch.ones(1, 32), torch.zeros(1, 32), client.first_kept()["private_prompts"]
    assert first.any()
    assert torch.equal(method.personal(client, {"head": sent})["private_prompts"], first)
    assert torch.equal(method.personal(client, {"private_prompts": sent})["private_prompts"], sent)
    client = replace(client, memory={"private_prompts": kept})
    assert torch.equal(method.personal(client, {"private_prompts": sent})["private_prompts"], kept)


@EVERY
def test_a_visit_changes_nothing_but_its_result(name, federation):
    tiny = federation(METHODS.get(name)(), images=8)
    state = tiny.start()
    before = {key: tensor.clone() for key, tensor in state.tensors.items()}
    first, second = tiny.update(state, 1)[0], tiny.update(state, 1)[0]
    assert same(first.tensors, second.tensors)
    tiny.aggregate(state, [first])
    assert same(before, state.tensors)


@EVERY
def test_a_run_continues_from_its_folder_bit_for_bit(name, federation):
    whole, half = finished(name), federation(METHODS.get(name)(), images=8).run(1)
    half.state = ServerState(1, {})  # what goes on is what the folder holds
    assert same(whole.state.tensors, half.more(1).state.tensors)
    assert all(same(whole.memories[c].tensors, half.memories[c].tensors) for c in whole.memories)


@EVERY
def test_clients_that_learn_nothing_leave_what_is_sent_as_it_was(name, federation):
    tiny = federation(METHODS.get(name)(), images=8, training=Training(lr=0.0, epochs=1))
    run = tiny.run(1)
    before = tiny.start()
    for client in range(3):
        old, new = tiny.sent(before, client), tiny.sent(run.state, client)
        for tensor in set(tiny.host.table.trained) & old.keys():
            torch.testing.assert_close(new[tensor], old[tensor], atol=1e-6, rtol=0)


@EVERY
def test_equal_sizes_make_both_weightings_the_same(name, federation):
    states = [
        federation(METHODS.get(name)(weighting=weighting), images=8).run(1).state.tensors
        for weighting in ("uniform", "size")
    ]
    for tensor in states[0]:
        torch.testing.assert_close(states[0][tensor], states[1][tensor], atol=1e-6, rtol=1e-5)


@EVERY
def test_heldout_clients_are_served_or_declared_not_to_be(name):
    run = finished(name)
    logits = run.predict(3)
    assert logits.shape == (8, 4)
    assert not logits.isnan().any()
    assert torch.isfinite(logits.amax(1)).all(), "a class without a prior may be ruled out, not all of them"
    tested = run.tiny.made().roster.tested()
    assert tested == ([0, 1, 2, 3] if run.tiny.method.supports_heldout else [0, 1, 2])
    if not run.tiny.method.supports_heldout:
        assert run.tiny.host.table.kept, "a method without anything of the client's own can serve everybody"


@EVERY
def test_predictions_do_not_read_labels(name, federation):
    run = federation(METHODS.get(name)(), images=8).run(1)
    expected, host = run.predict(0), run.tiny.host
    nothing = np.zeros(8, dtype=np.int64)
    host.clients = [replace(client, test_labels=nothing) for client in host.clients]
    assert torch.equal(run.predict(0), expected)


@EVERY
def test_logit_prior_adds_the_clients_log_prior_to_the_logits(name, federation):
    runs = {
        kind: federation(METHODS.get(name)(logit_prior=kind), images=8).run(1) for kind in ("none", "test")
    }
    priors = runs["test"].tiny.host.log_priors(runs["test"].tiny.host.client(0))
    assert torch.isfinite(runs["none"].predict(0)).all()
    assert torch.equal(runs["test"].predict(0), runs["none"].predict(0) + priors)


@EVERY
def test_a_mask_rules_out_classes_without_a_prior_and_changes_no_other_logit(name, federation):
    runs = {
        kind: federation(METHODS.get(name)(logit_prior=kind), images=8).run(1) for kind in ("none", "mask")
    }
    held = runs["mask"].tiny.host.log_priors(runs["mask"].tiny.host.client(0)) > -torch.inf
    assert held.tolist() == [True, True, False, False]
    expected = torch.where(held, runs["none"].predict(0), -torch.inf)
    assert torch.equal(runs["mask"].predict(0), expected)


@EVERY
def test_logit_prior_in_training_makes_known_classes_easy(name, federation):
    training = Training(lr=0.0, epochs=1)
    losses = {
        kind: federation(METHODS.get(name)(logit_prior=kind), images=8, training=training).run(1).loss(0)
        for kind in ("test", "train+test")
    }
    gain = 0.3 if losses["test"] > 0.5 else 0.0  # two of four classes have no prior
    assert losses["train+test"] < losses["test"] - gain


@EVERY
def test_prior_smoothing_keeps_every_class_possible(name, federation):
    method = METHODS.get(name)(logit_prior="train+test", prior_smoothing=0.1)
    assert torch.isfinite(federation(method, images=8).run(1).predict(0)).all()


@EVERY
def test_a_head_bias_travels_with_the_head(name, federation):
    run = federation(METHODS.get(name)(head_bias=True), images=8).run(1)
    places = [update.tensors for update in run.updates[0]] + [run.for_test(0)[1]]
    assert all(("head" in tensors) == ("head_bias" in tensors) for tensors in places)
    kept = run.memories[0].tensors if run.memories else {}
    assert ("head" in kept) == ("head_bias" in kept)
    assert any("head_bias" in tensors for tensors in places)


@EVERY
def test_updates_of_one_client_are_enough(name, federation):
    run = federation(METHODS.get(name)(), images=8).run(1, sampled=(2,))
    assert [update.client for update in run.updates[0]] == [2]
    assert run.state.round == 1


def test_methods_with_a_visit_of_their_own_train_one_client_at_a_time() -> None:
    alone = {name for name in METHODS.builtin if not METHODS.get(name)().trains_together()}
    assert alone == {"fedpr", "sgpt"}


def test_under_privacy_statistics_see_an_even_prior_and_otherwise_the_clients_own(federation) -> None:
    client = federation(METHODS.get("head")(), images=8).client(0)
    assert client.described() is client
    seen = replace(client, hide_priors=True).described()
    for log_priors in (seen.log_priors, seen.samples.log_priors):
        torch.testing.assert_close(log_priors, torch.full((4,), 0.25).log())
    several = replace(client, hide_priors=True, log_priors=torch.zeros(3, 4)).described()
    torch.testing.assert_close(several.log_priors, torch.full((3, 4), 0.25).log())


def test_a_client_is_in_its_first_round_and_open_unless_it_is_told_otherwise() -> None:
    defaults = {field.name: field.default for field in fields(Client)}
    assert (defaults["round"], defaults["chunk"], defaults["hide_priors"]) == (0, 100, False)


def test_prompts_for_as_many_blocks_as_there_are_and_no_more() -> None:
    sizes = Sizes(classes=4, width=32, depth=8, patch=4, clients=2)
    for blocks in (None, 1, 8):
        check_blocks(blocks, sizes)
    with pytest.raises(ConfigError, match="method.blocks=9 is more than the backbone has: 8"):
        check_blocks(9, sizes)


def test_blocks_far_apart_are_taken_as_they_are() -> None:
    assert METHODS.get("pep")(layers=(1, 8)).layers == (1, 8)


def test_a_smoothed_prior_needs_the_rows_of_all_classes() -> None:
    assert Method(prior_smoothing=0.1).needs_all_rows() == "method.prior_smoothing above 0"
    assert Method().needs_all_rows() == ""


@pytest.mark.parametrize("layers", [(5, 4), (4, 4), (-1, 2)])
def test_blocks_that_are_negative_repeated_or_out_of_order_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be ascending block indices from 0"):
        METHODS.get("pep")(layers=layers)
