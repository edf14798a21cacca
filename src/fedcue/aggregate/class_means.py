"""Statistics of a client's images, which add up over clients: class sums, counts, second moments."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Generator, Tensor


class Prototypes(NamedTuple):
    """The prototypes ``[L, C, d]`` that a client was sent, and which classes have one ``[C]``."""

    values: Tensor
    known: Tensor


class CentroidSums:
    """Running class sums of vectors ``[B, L, d]``: a client's pass over its own images."""

    sent: ClassVar[torch.dtype | None] = None
    """The type in which statistics are sent, if not the declared one."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.sums: Tensor | None = None
        self.counts = torch.zeros(classes, dtype=torch.float64)
        self.told: Prototypes | None = None
        """The prototypes that the client was sent; only noise depends on them."""

    def shortened(self, vectors: Tensor) -> Tensor:
        """Return vectors as they are counted."""
        return vectors

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        """Add the vectors of some images under their labels."""
        vectors, labels = vectors.double().cpu(), labels.cpu()
        if self.sums is None:
            self.sums = torch.zeros(self.classes, *vectors.shape[1:], dtype=torch.float64)
        self.sums.index_add_(0, labels, vectors)
        self.counts += torch.bincount(labels, minlength=self.classes)

    def reply(self, by_count: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return what is sent: centroids ``[L, C, d]`` (``eq:centroid_eq_client``) and who holds them.

        With ``by_count`` the class sums and counts are sent instead, so that the server's mean
        weighs clients by their images.
        """
        assert self.sums is not None, "a client has at least one image"
        values = self.sums if by_count else self.sums / self.counts.clamp(min=1)[:, None, None]
        holds = self.counts.long() if by_count else self.counts > 0
        return {"centroids": values.transpose(0, 1).to(dtype).contiguous(), "holds": holds}


def dealt(labels: Tensor, parts: int, generator: Generator) -> Tensor:
    """Return for each image one of ``parts``: every class's images, dealt out at random.

    Of ``n`` images of a class, part ``j`` has ``(n + parts - 1 - j) // parts``.
    """
    shuffled = torch.randperm(len(labels), generator=generator)
    order = shuffled[labels[shuffled].argsort(stable=True)]
    of_class = labels[order].contiguous()
    number = torch.arange(len(labels)) - torch.searchsorted(of_class, of_class)  # within the class
    part = torch.empty_like(labels)
    part[order] = number % parts
    return part


class MomentSums:
    """The running sum of ``x x^T`` over vectors ``[B, d]``: a client's part of a covariance."""

    def __init__(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64)

    def add(self, vectors: Tensor) -> None:
        """Add the vectors of some images."""
        exact = vectors.double()
        self.total = self.total + (exact.T @ exact).cpu()

    def reply(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return what is sent: the lower half ``[d (d + 1) / 2]``, row by row; the other half is the same.

        What is off the diagonal is times the square root of two, so that the half is as long as the whole:
        noise that hides it is then no more than it must be.
        """
        return (self.total / _in_half(self.total)).to(dtype)[_lower(self.total)]


def whole(half: Tensor) -> Tensor:
    """Return the symmetric matrix ``[d, d]`` of which ``half [d (d + 1) / 2]`` was sent, in float64."""
    width = math.isqrt(2 * len(half))
    matrix = half.new_zeros(width, width, dtype=torch.float64)
    matrix[_lower(matrix)] = half.double()
    return (matrix + matrix.tril(-1).T) * _in_half(matrix)


def _lower(matrix: Tensor) -> Tensor:
    return torch.ones_like(matrix, dtype=torch.bool).tril()


def _in_half(matrix: Tensor) -> Tensor:
    """Return what turns numbers of the half into those of the matrix."""
    return torch.full_like(matrix, math.sqrt(0.5)).fill_diagonal_(1.0)
