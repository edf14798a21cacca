"""Class priors of images without labels, from a classifier's scores alone."""

from __future__ import annotations

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
