"""What images without labels say about how frequent their classes are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import digamma
from support import SMALL
from torch import Tensor

from fedcue.clients.federation import load_federation
from fedcue.clients.priors import (
    FALSE_ALARMS,
    UNKNOWN,
    concentration_of,
    contradiction,
    estimate_priors,
    is_doubtful,
)
from fedcue.config.layers import load

CLASSES = 6


def logits_of(priors: list[float], images: int, seed: int) -> Tensor:
    """Draw labels by the priors, and the logits of the best classifier of unit Gaussians 3 apart."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, images, p=priors)
    centres = 3 / np.sqrt(2) * np.eye(CLASSES)
    points = centres[labels] + rng.normal(size=(images, CLASSES))
    return torch.from_numpy(points @ centres.T)


OWN, OTHER = [0.5, 0.3, 0.2, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.2, 0.3, 0.5]


@pytest.mark.parametrize("images", [2, 10, 40])
def test_false_alarms_are_as_rare_as_stated(images: int) -> None:
    alarms = [is_doubtful(logits_of(OWN, images, seed), torch.tensor(OWN)) for seed in range(300)]
    assert np.mean(alarms) <= FALSE_ALARMS


def test_other_classes_are_noticed_in_twenty_images() -> None:
    alarms = [is_doubtful(logits_of(OTHER, 20, seed), torch.tensor(OWN)) for seed in range(50)]
    assert np.mean(alarms) > 0.95


def test_one_image_proves_nothing_and_priors_need_not_sum_to_one() -> None:
    assert contradiction(logits_of(OTHER, 1, 0), torch.tensor(OWN)) == 0
    logits = logits_of(OTHER, 20, 0)
    assert contradiction(logits, torch.tensor(OWN)) == pytest.approx(
        contradiction(logits, 10 * torch.tensor(OWN)), rel=1e-6
    )


def in_plain_loops(scores: np.ndarray, concentration: float, labelled: list[int], steps: int) -> np.ndarray:
    """Share images out one by one, with scipy's digamma."""
    known = [concentration + n for n in labelled]
    counts = [k + len(scores) / len(known) for k in known]
    for _ in range(steps):
        weights = np.exp(digamma(counts))
        shares = [[row[c] * weights[c] for c in range(len(known))] for row in scores]
        counts = [known[c] + sum(s[c] / sum(s) for s in shares) for c in range(len(known))]
    return np.array(counts) / sum(counts)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_where_clients_hold_many_classes_each_image_hears_the_others_alone(temperature: float) -> None:
    logits, labelled = logits_of(OWN, 40, 0), [0, 2, 0, 0, 1, 0]
    found = estimate_priors(logits, 0.3, temperature, labelled, steps=25, tolerance=0.0)
    scores = (logits / temperature).softmax(1).tolist()
    shares = [[1 / CLASSES] * CLASSES for _ in scores]
    for _ in range(25):
        total = [0.3 + labelled[c] + sum(own[c] for own in shares) for c in range(CLASSES)]
        weighed = [
            [row[c] * (total[c] - own[c]) for c in range(CLASSES)]
            for row, own in zip(scores, shares, strict=True)
        ]
        shares = [[value / sum(row) for value in row] for row in weighed]
    counts = np.array([0.3 + labelled[c] + sum(own[c] for own in shares) for c in range(CLASSES)])
    np.testing.assert_allclose(found, counts / counts.sum(), atol=1e-10)
    sparse = estimate_priors(logits, 0.3, temperature, labelled, steps=25, tolerance=0.0, few=0.3)
    assert np.abs(found - sparse).max() > 1e-3, "the two ways differ"


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_it_is_variational_bayes(temperature: float) -> None:
    logits = logits_of(OWN, 40, 0)
    labelled = [0, 2, 0, 0, 1, 0]
    found = estimate_priors(logits, 0.2, temperature, labelled, steps=25, tolerance=0.0)
    scores = (logits / temperature).softmax(1).numpy()
    np.testing.assert_allclose(found, in_plain_loops(scores, 0.2, labelled, 25), atol=1e-5)


@pytest.mark.parametrize("priors", [OWN, OTHER, [1 / CLASSES] * CLASSES])
def test_many_images_tell_their_priors(priors: list[float]) -> None:
    np.testing.assert_allclose(estimate_priors(logits_of(priors, 5000, 1), 0.1, 1.0), priors, atol=0.03)


def test_labels_alone_give_the_mean_of_their_dirichlet() -> None:
    found = estimate_priors(np.zeros((0, 3)), 0.5, 1.5, [4, 0, 1])
    np.testing.assert_allclose(found, np.array([4.5, 0.5, 1.5]) / 6.5)


def test_a_sparse_prior_is_nearer_the_truth_than_a_flat_one_and_labels_help() -> None:
    def wrong(concentration: float, labelled: list[int]) -> float:
        found = [estimate_priors(logits_of(OWN, 10, s), concentration, 1.0, labelled) for s in range(50)]
        return float(np.mean([np.abs(one - OWN).sum() for one in found]))

    nothing = [0] * CLASSES
    assert wrong(0.2, nothing) < wrong(1.0, nothing) < wrong(10.0, nothing)
    assert wrong(0.2, [5, 3, 2, 0, 0, 0]) < wrong(0.2, nothing)


@pytest.mark.parametrize("concentration", [0.03, 0.3, 3.0])
def test_the_clients_mixes_say_how_concentrated_they_are(concentration: float) -> None:
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet(np.full(50, concentration), 200)
    found = concentration_of(rng.multinomial(60, mix) for mix in mixes)
    assert found == pytest.approx(concentration, rel=0.15)


def test_mixes_that_say_nothing_and_extreme_ones() -> None:
    assert concentration_of([]) == concentration_of([np.array([1, 0])]) == UNKNOWN
    assert concentration_of([np.array([9, 0])] * 3) == 0.01
    assert concentration_of([np.array([9, 9])] * 3) == 100
    for concentration in (0.01, 100.0):
        assert np.isfinite(estimate_priors(logits_of(OWN, 40, 0) * 100, concentration, 0.1)).all()


def test_privacy_leaves_the_clients_mixes_out() -> None:
    learned = load_federation(load("default", [*SMALL, "method=head"])).host.concentration
    assert learned != UNKNOWN
    private = ["privacy=dp", "privacy.max_epsilon=1000", "method=head"]
    assert load_federation(load("default", [*SMALL, *private])).host.concentration == UNKNOWN
