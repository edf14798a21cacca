"""Which images a client is tested on, and under which class priors."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.tiny_federation import TinyFederation

from fedcue.clients.priors import estimate_priors
from fedcue.data.clients import ClientData
from fedcue.methods.cue import Cue
from fedcue.methods.head import HeadTuning
from fedcue.methods.pep import PEP
from fedcue.methods.sgpt import SGPT
from fedcue.types import ClientMemory, Download

TRAIN = [[0, 0, 0, 1], [1, 1, 2], [2, 2, 1, 1, 2], [0, 2, 3, 3]]
TEST = [[0, 1, 1], [1, 2, 2, 1, 2], [2, 1, 2, 2], [3, 0, 2, 0]]
OWN = [[3 / 4, 1 / 4, 0, 0], [0, 2 / 3, 1 / 3, 0]]
"""Shares of the classes among the training labels of the first two clients."""


def prepared(priors="labels", **options):
    """Return a tiny federation, and what its first two clients are tested with together."""
    tiny = TinyFederation(
        HeadTuning(**options), labels=TRAIN, test_labels=TEST, settings=[f"evaluation.priors={priors}"]
    )
    first = tiny.method.table(tiny.sizes).first(0)
    return tiny, *tiny.host.prepare_test([0, 1], Download(0, 0, first), ClientMemory())


def test_every_image_is_tested_under_its_own_clients_training_labels():
    _, samples, _ = prepared()
    assert samples.labels.tolist() == TEST[0] + TEST[1]
    expected = torch.tensor([OWN[0]] * 3 + [OWN[1]] * 5)
    torch.testing.assert_close(samples.log_priors.exp(), expected)


def test_a_share_of_the_priors_is_spread_over_all_classes():
    tiny, samples, _ = prepared(prior_smoothing=0.2)
    expected = 0.8 * torch.tensor([OWN[0]] * 3 + [OWN[1]] * 5) + 0.2 / 4
    torch.testing.assert_close(samples.log_priors.exp(), expected)
    torch.testing.assert_close(tiny.client(0).log_priors.exp(), expected[0])


def test_uniform_priors_are_the_same_for_all_classes():
    _, samples, _ = prepared("uniform")
    torch.testing.assert_close(samples.log_priors.exp(), torch.full((8, 4), 0.25))


@torch.no_grad()
def test_estimated_priors_follow_from_the_scores_of_the_clients_own_test_images():
    tiny, samples, tensors = prepared("em")
    logits = torch.cat([tiny.method.logits(tensors, batch) for batch in samples.batches(100)])
    for own in (slice(0, 3), slice(3, 8)):
        temperature = tiny.host.config.evaluation.temperature
        found = estimate_priors(logits[own].double(), tiny.host.concentration, temperature)
        expected = torch.from_numpy(found).float().expand(len(logits[own]), -1)
        torch.testing.assert_close(samples.log_priors[own].exp(), expected)
    assert not torch.equal(samples.log_priors[0], samples.log_priors[3])


@pytest.mark.parametrize("on", ["test", "validation"])
def test_test_images_are_those_of_the_split_that_was_asked_for(on):
    parts = {"test": [1, 2], "test_labels": [0, 1], "validation": [3], "validation_labels": [2]}
    assert ClientData.tested(SimpleNamespace(**parts), on) == (parts[on], parts[f"{on}_labels"])


@pytest.mark.parametrize("prior", ["none", "test", "mask"])
@pytest.mark.parametrize("kind", [HeadTuning, PEP, Cue, SGPT], ids=lambda kind: kind.name)
@torch.no_grad()
def test_clients_tested_together_get_the_answers_they_get_alone(kind, prior):
    """Three clients with other classes: each image is answered under its own client's priors."""
    tiny = TinyFederation(kind(logit_prior=prior), labels=TRAIN, test_labels=TEST)
    state = tiny.start()
    download = Download(0, 0, tiny.sent(state, 0))
    logits = []
    for group in ([0, 1, 2], [0], [1], [2]):
        samples, tensors = tiny.host.prepare_test(group, download, ClientMemory())
        logits.append(torch.cat([tiny.method.predict(tensors, batch) for batch in samples.batches(100)]))
    torch.testing.assert_close(logits[0], torch.cat(logits[1:]), atol=1e-5, rtol=1e-5)


def test_a_class_is_held_if_any_of_the_clients_tested_together_has_it():
    tiny = TinyFederation(HeadTuning(), labels=TRAIN)
    client = tiny.client(0)
    assert client.held_classes.tolist() == [0, 1]
    both = torch.stack([client.log_priors, tiny.client(1).log_priors])
    assert replace(client, log_priors=both).held_classes.tolist() == [0, 1, 2]
