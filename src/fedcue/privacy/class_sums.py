"""Class statistics of a client under protection: clipped sums, and the paper's noisy centroids."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from fedcue.aggregate.class_means import CentroidSums
from fedcue.privacy.noise import power_of_two, snap
from fedcue.privacy.stream import NoiseStream

STEPS = 2**15
"""Steps in the radius, at least. Products of two numbers then have 32 bits or fewer: sums of them over two
million images are exact in float64."""


class ClippedSums(CentroidSums):
    """Class sums of vectors that are no longer than ``radius`` in any layer, and class counts.

    Another image in place of one moves the sums by at most twice the radius per layer: by that much
    within a class, by a factor of the square root of two less from one class to another, when two
    counts change by one.
    """

    sent: ClassVar[torch.dtype | None] = torch.float64

    def __init__(self, classes: int, radius: float) -> None:
        super().__init__(classes)
        self.radius = radius

    def shortened(self, vectors: Tensor) -> Tensor:
        """Return vectors no longer than the radius, on a grid."""
        exact = vectors.double()
        lengths = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        short: Tensor = exact * (self.radius / lengths.clamp(min=self.radius))
        return snap(short, power_of_two(self.radius) / STEPS)

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        """Add the vectors of some images, shortened to the radius."""
        super().add(self.shortened(vectors), labels)

    def reply(self, by_count: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return sums ``[L, C, d]`` and counts ``[C]`` of all classes, in float64: noise comes first."""
        assert self.sums is not None, "a client has at least one image"
        return {"centroids": self.sums.transpose(0, 1).contiguous(), "holds": self.counts}


class PaperSums(CentroidSums):
    """Centroids with the paper's Laplace noise: noise injection, not differential privacy.

    The scale of a class and layer is twice the largest L1 distance of an image from the class mean,
    divided by count and ``epsilon``. It is computed from the images it should hide: a class with
    one image, or with equal ones, is sent as it is; and absent classes are sent as exact zeros.
    With ``around_told`` the distance is from the prototype across clients, once the client knows one.
    """

    def __init__(self, classes: int, epsilon: float, stream: NoiseStream, around_told: bool) -> None:
        super().__init__(classes)
        self.epsilon, self.stream, self.around_told = epsilon, stream, around_told
        self._seen: list[tuple[Tensor, Tensor]] = []

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        """Add the vectors of some images and remember them for the scale of the noise."""
        super().add(vectors, labels)
        self._seen.append((vectors.double().cpu(), labels.cpu()))

    def reply(self, by_count: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return noisy centroids (or, with ``by_count``, these times the counts) and who holds them."""
        reply = super().reply(by_count, dtype)
        noise = laplace(self._scales(), reply["centroids"].shape[-1], self.stream)  # [C, L, d]
        factor = self.counts[:, None, None] if by_count else 1.0
        noisy = reply["centroids"].double() + (noise * factor).transpose(0, 1)
        return {**reply, "centroids": noisy.to(dtype).contiguous()}

    def _scales(self) -> Tensor:
        """Return the scale of the noise for each class and layer ``[C, L]``."""
        assert self.sums is not None, "a client has at least one image"
        counts = self.counts.clamp(min=1)  # a mean and the noise of an absent class are zero
        means = self.sums / counts[:, None, None]
        if self.around_told and self.told is not None:
            common = self.told.values.double().cpu().transpose(0, 1)
            means = torch.where(self.told.known.cpu()[:, None, None], common, means)
        largest = torch.zeros(self.sums.shape[:2], dtype=torch.float64)
        for vectors, labels in self._seen:
            distances = (vectors - means[labels]).abs().sum(-1)  # [B, L]
            largest.scatter_reduce_(0, labels[:, None].expand_as(distances), distances, "amax")
        return 2 * largest / counts[:, None] / self.epsilon


def laplace(scales: Tensor, width: int, stream: NoiseStream) -> Tensor:
    """Draw Laplace noise ``[..., width]`` of the given scales: the difference of two exponentials."""
    shape = (2, *scales.shape, width)
    uniform = torch.from_numpy(stream.uniform_floats(math.prod(shape))).view(shape)
    exponential = -torch.log1p(-uniform)
    return (exponential[0] - exponential[1]) * scales[..., None]
