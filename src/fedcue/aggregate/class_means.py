"""Class means of images: sums at the client, and at the server a head made of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcue.aggregate.mean import Sums
from fedcue.errors import FedcueError


class CentroidSums:
    """Running class sums of vectors ``[B, L, d]``: a client's pass over its own images."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.sums: Tensor | None = None
        self.counts = torch.zeros(classes, dtype=torch.float64)

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        """Add the vectors of some images under their labels."""
        vectors, labels = vectors.double().cpu(), labels.cpu()
        if self.sums is None:
            self.sums = torch.zeros(self.classes, *vectors.shape[1:], dtype=torch.float64)
        self.sums.index_add_(0, labels, vectors)
        self.counts += torch.bincount(labels, minlength=self.classes)

    def reply(self, by_count: bool = False) -> dict[str, Tensor]:
        """Return what is sent: centroids ``[L, C, d]`` (``eq:centroid_eq_client``) and who holds them.

        With ``by_count`` the class sums and counts are sent instead, so that the server's mean
        weighs clients by their images.
        """
        assert self.sums is not None, "a client has at least one image"
        values = self.sums if by_count else self.sums / self.counts.clamp(min=1)[:, None, None]
        holds = self.counts.long() if by_count else self.counts > 0
        return {"centroids": values.transpose(0, 1).float().contiguous(), "holds": holds}


SHRINKAGE = 0.1
"""Share of the covariance that is taken as equal in all directions."""


def second_moments(vectors: Iterable[Tensor]) -> Tensor:
    """Return the sum of ``x x^T`` over vectors ``[B, d]``, a client's part of a covariance: its lower half.

    ``[d (d + 1) / 2]``; the other half is the same.
    """
    total = sum((batch.double().T @ batch.double() for batch in vectors), torch.zeros(())).float().cpu()
    return total[tuple(torch.tril_indices(*total.shape))]


def whitening(moments: Tensor, prototypes: Tensor, counts: Tensor) -> Tensor:
    """Return ``T [d, d]`` under which images spread about equally in all directions within a class.

    From summed second moments ``[d (d + 1) / 2]``, class means ``[C, d]`` and counts ``[C]``.
    """
    means, counts = prototypes.double(), counts.double()
    within = -(means.T * counts) @ means  # of which eigh reads the lower half
    within[tuple(torch.tril_indices(*within.shape))] += moments.double()
    spread = within / (counts.sum() - (counts > 0).sum()).clamp(min=1)
    variances, directions = torch.linalg.eigh(spread)
    even = spread.trace().clamp(min=1e-6) / len(spread)
    deviations = ((1 - SHRINKAGE) * variances.clamp(min=0) + SHRINKAGE * even).sqrt()
    transform: Tensor = directions / deviations
    return transform.T.float()


def prototype_head(
    prototypes: Tensor, known: Tensor, scale: float, transform: Tensor | None = None
) -> dict[str, Tensor]:
    """Return a linear head from prototypes ``[C, d]``: less their mean, and all of one length.

    Both are meant after ``transform``. A prototype gives its own class the logit ``scale`` on average;
    a class without one always has the logit 0.
    """
    mean = prototypes[known].mean(0)
    rows = prototypes - mean if transform is None else (prototypes - mean) @ transform.T
    length = scale / torch.linalg.vector_norm(rows[known], dim=-1).mean().clamp(min=1e-12)
    rows = torch.where(known[:, None], length * F.normalize(rows, dim=-1), 0.0)
    head = rows if transform is None else rows @ transform
    return {"head": head, "head_bias": -head @ mean}


def head_from_sums(sums: Sums, scale: float, whiten: bool) -> dict[str, Tensor]:
    """Return the head of all clients' class means, from their summed class sums, counts and moments."""
    counts = sums.total("holds")
    if not (counts > 0).any():
        raise FedcueError(
            "No class is known of any client: there is nothing to make a head of. With privacy=dp "
            "the noise hides all classes: give a larger privacy.max_epsilon, or clients with more images."
        )
    means = sums.total("centroids")[0] / counts.clamp(min=1)[:, None]
    transform = whitening(sums.total("moments"), means, counts) if whiten else None
    return prototype_head(means, counts > 0, scale, transform)
