"""How well the bare backbone's class prototypes name images, block by block."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcue.clients.federation import Federation
from fedcue.model.prompted import no_prompts
from fedcue.rng import rng

EQUAL = 1e-12
"""Cosine similarities closer than this are a tie, as all of them are where cls has seen no image yet."""


def prototype_accuracy(federation: Federation, tested: NDArray[np.int64]) -> dict[str, Tensor]:
    """Return top-1 and top-5 accuracy of the nearest prototypes, by block input and last the output.

    The prototypes are class means of cls over a sample of the training clients' images; the images
    named are a sample of those ``tested``. Both have at most ``evaluation.prototype_sample`` images.
    """
    most, seed = federation.config.evaluation.prototype_sample, federation.config.seed
    if not most:
        return {}
    training = np.concatenate(
        [federation.clients[client].train for client in federation.roster.training_clients]
    )
    known = rng(seed, "prototype sample", "training").permutation(training)[:most]
    asked = rng(seed, "prototype sample", "test").permutation(tested)[:most]
    labels = torch.from_numpy(federation.dataset.labels)
    vectors, truth = _cls_by_block(federation, known), labels[known]
    means = torch.zeros(federation.host.sizes.classes, *vectors.shape[1:], dtype=torch.float64)
    means.index_add_(0, truth, vectors)
    held = torch.bincount(truth, minlength=len(means)) > 0
    similarity = _cosines(_cls_by_block(federation, asked), means)  # [n, L, C]
    similarity[:, :, ~held] = -torch.inf
    own = similarity.gather(2, labels[asked].view(-1, 1, 1).expand(-1, similarity.shape[1], 1))
    return {f"prototype_top{k}": top_share(similarity, own, k).mean(0).float() for k in (1, 5)}


def top_share(similarity: Tensor, own: Tensor, k: int) -> Tensor:
    """Return the chance that the own class is among the ``k`` nearest, ties broken at random: ``[n, L]``."""
    nearer = (similarity > own + EQUAL).sum(2)
    equal = (similarity >= own - EQUAL).sum(2) - nearer
    share = ((k - nearer) / equal.clamp(min=1)).clamp(0, 1)
    return torch.where(own[..., 0].isfinite(), share, 0.0)


def _cosines(vectors: Tensor, means: Tensor) -> Tensor:
    unit, prototypes = (torch.nn.functional.normalize(t, dim=-1) for t in (vectors, means))
    return torch.einsum("nld,cld->nlc", unit, prototypes)


@torch.no_grad()
def _cls_by_block(federation: Federation, images: NDArray[np.int64]) -> Tensor:
    """Return cls of the bare backbone at every block's input and at the output: ``[n, depth + 1, d]``."""
    model, chunk = federation.model, federation.config.evaluation.chunk
    blocks = tuple(range(model.depth + 1))
    parts = []
    for start in range(0, len(images), chunk):
        federation.host.stop.check()
        prefix = model.prefix(federation.pixels[images[start : start + chunk]], project=False)
        parts.append(model.cls_tokens(prefix, no_prompts, blocks).double().cpu())
    return torch.cat(parts)
