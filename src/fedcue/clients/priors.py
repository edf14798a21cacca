"""Class priors of images without labels, from a classifier's scores alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def estimate_priors(logits: Tensor, steps: int = 1000, tolerance: float = 1e-6) -> Tensor:
    """Estimate class priors ``[C]`` of images by EM over their ``logits [n, C]``.

    The logits must not know the priors yet: their softmax is what the classes would be if all were
    equally frequent. Each step weighs it with the current priors and takes the mean over images, as
    Saerens, Latinne and Decaestecker do (2002); the likelihood never falls.
    """
    scores = logits.double().softmax(-1)
    priors = torch.full_like(scores[0], 1 / scores.shape[-1])
    for _ in range(steps):
        weighed = scores * priors
        new = (weighed / weighed.sum(-1, keepdim=True)).mean(0)
        moved, priors = (new - priors).abs().max(), new
        if moved < tolerance:
            break
    return priors


FALSE_ALARMS = 0.01
"""Of image sets that have the priors they are said to have, at most so many are doubted."""

DOUBT = 0.1
"""Share of an image's score that is spread over all classes, because a classifier may be wrong and sure."""


def contradiction(logits: Tensor, priors: Tensor) -> float:
    """Return the log of how much likelier other priors make the images than ``priors [C]`` do.

    ``logits [n, C]`` must not know any priors. Priors are learned from one half of the images and tried on
    the other, and the other way round; the mean of both likelihood ratios is at most 1 in expectation if
    the given priors are the true ones. So it exceeds ``1 / FALSE_ALARMS`` with at most that probability
    (split likelihood ratio, Wasserman, Ramdas and Balakrishnan, 2020), as far as the scores are right.
    """
    if len(logits) < 2:
        return 0.0
    scores = logits.double().softmax(-1)
    scores = (1 - DOUBT) * scores + DOUBT / scores.shape[-1]
    given = priors.double() / priors.double().sum()

    def log_ratio(learned: Tensor, tried: Tensor) -> Tensor:
        return ((tried @ estimate_priors(learned.log())).log() - (tried @ given).log()).sum()

    both = torch.stack([log_ratio(scores[::2], scores[1::2]), log_ratio(scores[1::2], scores[::2])])
    return float(torch.logsumexp(both, 0)) - math.log(2)


def is_doubtful(logits: Tensor, priors: Tensor) -> bool:
    """Tell whether images contradict the priors they are said to have."""
    return contradiction(logits, priors) > -math.log(FALSE_ALARMS)
