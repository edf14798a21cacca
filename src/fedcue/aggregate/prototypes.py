"""Class prototypes: local centroids at the client, their mean and momentum at the server."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcue.types import Tensors


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


def first_prototypes(total: Tensor, weight: Tensor, divisor: Tensor | None = None) -> dict[str, Tensor]:
    """Return the server's prototype tensors from summed centroids ``[L, C, d]`` and weights ``[C]``.

    Each class is divided by the weight of its holders, or by ``divisor`` where one is given.
    """
    return {
        "prototypes": total / (weight if divisor is None else divisor).clamp(min=1)[:, None],
        "has_prototype": weight > 0,
        "centroid_sums": torch.zeros_like(total),
        "centroid_weights": torch.zeros_like(weight),
    }


def move_prototypes(tensors: Tensors, momentum: float) -> dict[str, Tensor]:
    """Move the prototypes towards the period's mean centroids (``eq:mometum_update``).

    A class nobody sent keeps its prototype; one that had none takes the mean as it is.
    """
    recent = first_prototypes(tensors["centroid_sums"], tensors["centroid_weights"])
    old, known, seen = tensors["prototypes"], tensors["has_prototype"], recent["has_prototype"]
    new = recent["prototypes"]
    moved = torch.where(known[:, None], momentum * old + (1 - momentum) * new, new)
    return {
        **recent,
        "prototypes": torch.where(seen[:, None], moved, old),
        "has_prototype": known | seen,
    }
