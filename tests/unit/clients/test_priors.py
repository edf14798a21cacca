"""What images without labels say about how frequent their classes are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcue.clients.priors import FALSE_ALARMS, contradiction, is_doubtful

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
