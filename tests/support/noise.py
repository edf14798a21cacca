"""Noise on tensors, by the steps in which the package adds it to sums."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcue.privacy.noise import in_steps, noisy_steps
from fedcue.privacy.stream import NoiseStream


def add_gaussian(values: Tensor, deviation: float, stream: NoiseStream) -> Tensor:
    """Return values snapped to the grid of ``deviation``, with Gaussian noise, in float64."""
    return noisy_steps(in_steps(values, deviation), deviation, stream)


def gaussian(shape: tuple[int, ...], deviation: float, stream: NoiseStream) -> Tensor:
    """Draw Gaussian noise in float64, on the grid of ``deviation``."""
    return add_gaussian(torch.zeros(shape, dtype=torch.float64), deviation, stream)
