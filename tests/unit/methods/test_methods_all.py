"""What holds for every method, registered or given by its import path: a new one is tested by existing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tiny_federation import Run, TinyFederation, random_vit

from fedcue.registry import METHODS
from fedcue.train.settings import Training
from fedcue.types import ClientMemory, ServerState, Update, pack, unpack

EVERY = pytest.mark.parametrize("name", [*METHODS.names(), "02_new_method:SideBySide"])


@cache
def finished(name: str) -> Run:
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
    assert same(random_vit().backbone.state_dict(), finished(name).federation.model.backbone.state_dict())


@EVERY
def test_same_seed_same_bits_other_seed_other_bits(name, federation):
    runs = [finished(name), *(federation(METHODS.get(name)(), images=8, seed=seed).run(2) for seed in (0, 1))]
    assert same(runs[0].state.tensors, runs[1].state.tensors)
    assert all(same(runs[0].memories[c].tensors, runs[1].memories[c].tensors) for c in range(3))
    starts = [run.federation.start().tensors for run in runs]
    from_images = name in ("ncm", "cue")  # whose start does not depend on the seed
    assert same(starts[0], starts[2]) == from_images
    assert from_images or not same(runs[0].state.tensors, runs[2].state.tensors)


@EVERY
def test_only_declared_tensors_travel_and_all_are_finite(name):
    method, run = METHODS.get(name)(), finished(name)
    download = method.download(run.state, 0, 0)
    assert set(download.tensors) == set(method.sent())
    for update in run.updates[1]:
        assert set(update.tensors) == set(method.returned())
        assert all(torch.isfinite(tensor).all() for tensor in update.tensors.values())
        assert update.samples == 8


@EVERY
def test_memory_is_declared_and_never_sent(name):
    method, run = METHODS.get(name)(), finished(name)
    assert any(memory.tensors for memory in run.memories.values()) == method.keeps_memory
    travels = {*method.sent(), *method.returned()}
    assert not any(travels & memory.tensors.keys() for memory in run.memories.values())


@EVERY
def test_a_visit_changes_nothing_but_its_result(name, federation):
    tiny = federation(METHODS.get(name)(), images=8)
    state = tiny.start()
    before = {key: tensor.clone() for key, tensor in state.tensors.items()}
    first, second = tiny.update(state, 1)[0], tiny.update(state, 1)[0]
    assert same(first.tensors, second.tensors)
    tiny.method.aggregate(state, [first])
    assert same(before, state.tensors)


@EVERY
def test_a_run_continues_from_bytes_bit_for_bit(name, federation):
    tiny = federation(METHODS.get(name)(), images=8)
    whole, half = finished(name), tiny.run(1)
    half.state = ServerState(half.state.round, unpack(pack(half.state.tensors)))
    half.memories = {c: ClientMemory(unpack(pack(m.tensors))) for c, m in half.memories.items()}
    assert same(whole.state.tensors, half.more(1).state.tensors)


@EVERY
def test_clients_that_learn_nothing_leave_the_server_as_it_was(name, federation):
    tiny = federation(METHODS.get(name)(), images=8, training=Training(lr=0.0, epochs=1))
    run = tiny.run(1)
    before = tiny.start()
    for client in range(3):
        old = tiny.method.download(before, client, 0).tensors
        new = tiny.method.download(run.state, client, 0).tensors
        for tensor in tiny.method.shared():
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
    method, logits = METHODS.get(name)(), finished(name).predict(3)
    assert logits.shape == (8, 4)
    assert not logits.isnan().any()
    assert torch.isfinite(logits.amax(1)).all(), "a class without a prior may be ruled out, not all of them"
    if not method.supports_heldout:
        assert method.keeps_memory, "a method without anything of the client's own can serve everybody"


@EVERY
def test_predictions_do_not_read_labels(name, federation):
    run = federation(METHODS.get(name)(), images=8).run(1)
    expected = run.predict(0)
    samples = run.federation.samples
    run.federation.samples = lambda client: replace(samples(client), labels=torch.zeros(8, dtype=torch.int64))
    assert torch.equal(run.predict(0), expected)


@EVERY
def test_logit_prior_adds_the_clients_log_prior_to_the_logits(name, federation):
    runs = {
        kind: federation(METHODS.get(name)(logit_prior=kind), images=8).run(1) for kind in ("none", "test")
    }
    priors = runs["test"].federation.samples(0).log_priors
    assert torch.isfinite(runs["none"].predict(0)).all()
    assert torch.equal(runs["test"].predict(0), runs["none"].predict(0) + priors)


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
    method = METHODS.get(name)(head_bias=True)
    run = federation(method, images=8).run(1)
    places = [run.updates[0][0].tensors, run.memories[0].tensors]
    assert [("head" in tensors) for tensors in places] == [("head_bias" in tensors) for tensors in places]
    assert any("head_bias" in tensors for tensors in places)


@EVERY
@pytest.mark.parametrize("profile", ["paper", "native"])
def test_profiles_name_real_settings(name, profile):
    method = METHODS.get(name)
    settings = {"training": {}, "method": {}}
    for key, value in method.profiles[profile].items():
        section, _, option = key.partition(".")
        settings[section][option] = value
    Training(**settings["training"])
    method(**settings["method"])
    assert settings["training"].keys() >= {"lr", "weight_decay", "batch_size", "epochs"}


@EVERY
def test_updates_of_one_client_are_enough(name, federation):
    run = federation(METHODS.get(name)(), images=8).run(1, sampled=(2,))
    assert [isinstance(update, Update) for update in run.updates[0]] == [True]
    assert run.state.round == 1
