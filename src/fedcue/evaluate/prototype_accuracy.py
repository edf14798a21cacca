"""How well the bare backbone's class prototypes name images, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcue.clients.federation import Federation
from fedcue.model.prompted import no_prompts
from fedcue.rng import rng

Tell = Callable[[str, int, int], None]
"""Is told what is being done, how many steps of it are done and how many there are."""

EQUAL = 1e-12
"""Cosine similarities closer than this are a tie, as all of them are where cls has seen no image yet."""


def prototype_accuracy(
    federation: Federation, tested: NDArray[np.int64], tell: Tell = lambda name, done, total: None
) -> dict[str, Tensor]:
    """Return top-1 and top-5 accuracy of the nearest prototypes, by block input and last the output.

    The prototypes are class means of cls over the training clients' images or a sample of them; the
    images named are those ``tested`` or a sample of them: ``evaluation.prototype_sample``. Beside them
    stands how many of how many images were taken.
    """
    sample, seed = federation.config.evaluation.prototype_sample, federation.config.seed
    if not sample:
        return {}
    most = None if sample == "all" else sample
    training = np.concatenate(
        [federation.clients[client].train for client in federation.roster.training_clients]
    )
    known = rng(seed, "prototype sample", "training").permutation(training)[:most]
    asked = rng(seed, "prototype sample", "test").permutation(tested)[:most]
    labels = torch.from_numpy(federation.dataset.labels)
    shape = (federation.host.sizes.classes, federation.model.depth + 1, federation.host.sizes.width)
    sums = torch.zeros(shape, dtype=torch.float64)
    for images, vectors in _cls_by_block(federation, known, partial(tell, "prototypes of training images")):
        sums.index_add_(0, labels[images], vectors)
    held = torch.bincount(labels[known], minlength=len(sums)) > 0
    hits = {k: torch.zeros(shape[1], dtype=torch.float64) for k in (1, 5)}
    for images, vectors in _cls_by_block(federation, asked, partial(tell, "prototypes on test images")):
        similarity = _cosines(vectors, sums)  # [n, L, C]
        similarity[:, :, ~held] = -torch.inf
        own = similarity.gather(2, labels[images].view(-1, 1, 1).expand(-1, shape[1], 1))
        for k, found in hits.items():
            found += top_share(similarity, own, k).sum(0)
    counts = torch.tensor([len(known), len(training), len(asked), len(tested)], dtype=torch.int32)
    shares = {f"prototype_top{k}": (found / len(asked)).float() for k, found in hits.items()}
    return {**shares, "prototype_images": counts}


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
def _cls_by_block(
    federation: Federation, images: NDArray[np.int64], progress: Callable[[int, int], None]
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Yield images and their bare cls at every block's input and at the output: ``[n, depth + 1, d]``."""
    model, chunk = federation.model, federation.config.evaluation.chunk
    blocks = tuple(range(model.depth + 1))
    for start in range(0, len(images), chunk):
        federation.host.stop.check()
        progress(start, len(images))
        some = images[start : start + chunk]
        prefix = model.prefix(federation.pixels[some], project=False)
        yield some, model.cls_tokens(prefix, no_prompts, blocks).double().cpu()
