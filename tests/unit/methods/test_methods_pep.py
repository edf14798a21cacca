"""PEP-FedPT: the mixing weights and what reduces to what."""

from __future__ import annotations

import pytest
import torch

from fedcue.methods.fedvpt import FedVPT
from fedcue.methods.pep import PEP
from fedcue.model.prompts import class_scores

PRIORS = torch.tensor([0.5, 0.3, 0.2, 0.0]).log()


def scores(temperature, prototypes=None, cls=None, priors=PRIORS):
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(4, 16, generator=generator) if prototypes is None else prototypes
    cls = torch.randn(6, 16, generator=generator) if cls is None else cls
    return class_scores(cls, prototypes, torch.ones(4, dtype=torch.bool), priors, temperature)


def test_without_mixed_blocks_it_is_fedvpt_bit_for_bit(federation):
    pep, fedvpt = federation(PEP(layers=())).run(2), federation(FedVPT()).run(2)
    assert pep.state.tensors.keys() == fedvpt.state.tensors.keys()
    assert all(torch.equal(pep.state.tensors[name], fedvpt.state.tensors[name]) for name in pep.state.tensors)


def test_high_temperature_gives_the_prior():
    torch.testing.assert_close(scores(1e9), PRIORS.exp().expand(6, 4))


def test_low_temperature_gives_the_nearest_class_the_client_has():
    weights = scores(1e-5)
    assert torch.isfinite(weights).all()
    assert torch.equal(weights.amax(1), torch.ones(6))
    assert not weights[:, 3].any()


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 0.05, 1.0, 100.0])
def test_weights_are_a_distribution_over_the_clients_classes(temperature):
    weights = scores(temperature)
    torch.testing.assert_close(weights.sum(1), torch.ones(6))
    assert not weights[:, 3].any()


def test_scaling_a_prototype_changes_nothing():
    prototypes = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    scaled = prototypes * torch.tensor([0.1, 1, 7, 100])[:, None]
    torch.testing.assert_close(scores(0.05, prototypes), scores(0.05, scaled))


def test_at_the_first_block_every_image_gets_the_same_weights(federation):
    run = federation(PEP(layers=(0, 1, 2))).run(1)
    samples = run.federation.samples(0)
    method, model = run.federation.method, run.federation.model
    tensors = method.personalize(model, method.download(run.state, 0, 0), samples.log_priors, run.memories[0])
    batch = next(iter(samples.batches(16)))
    weights = method.inspect(model, tensors, batch)["mixing_weights"]
    torch.testing.assert_close(weights[:, 0], weights[:1, 0].expand(16, 4))
    assert (weights[:, 2] - weights[:1, 2]).abs().max() > 1e-4
    assert not weights[:, :, 2:].any()  # the client holds the classes 0 and 1


def test_heldout_clients_enter_no_prototype(federation):
    state = federation(PEP()).start()
    assert state.tensors["has_prototype"].tolist() == [True, True, True, True]
    alone = federation(PEP())
    reply = alone.method.warm_up(alone.visit(0))
    state = alone.method.start(alone.setting, 0, [reply])
    assert state.tensors["has_prototype"].tolist() == [True, True, False, False]


def test_rows_of_absent_classes_come_back_as_they_were_sent(federation):
    tiny = federation(PEP())
    state = tiny.run(1).state
    update, _ = tiny.update(state, 0)
    sent, back = state.tensors["class_prompts"], update.tensors["class_prompts"]
    assert torch.equal(back[2:], sent[2:])
    assert not torch.equal(back[:2], sent[:2])


def test_prototypes_move_only_at_the_end_of_a_period(federation):
    run = federation(PEP(period=2), images=8).run(1)
    first = run.federation.start().tensors["prototypes"]
    assert torch.equal(run.state.tensors["prototypes"], first)
    assert run.state.tensors["centroid_weights"].any()
    run.more(1)
    assert not torch.equal(run.state.tensors["prototypes"], first)
    assert not run.state.tensors["centroid_weights"].any()
