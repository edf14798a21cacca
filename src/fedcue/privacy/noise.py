"""Gaussian noise whose last bits tell nothing: values and noise are whole steps of a public grid.

A sum of two floating-point numbers shows in its last bits what was added. Here values are snapped to
a grid that follows from the deviation alone, the noise is a whole number of its steps, and both are
added as integers. What a release may be then does not depend on the values, only how likely it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedcue.errors import FedcueError
from fedcue.privacy.discrete import discrete_gaussian
from fedcue.privacy.stream import NoiseStream

STEPS = 2**40
"""Steps of the grid in a deviation, at least; there are fewer than twice as many."""

MARGIN = 2**20
"""The deviation is larger than asked for by one part in so many: half for snapping, half for clipping."""

_MOST_STEPS = 2**62
"""Largest value in steps, so that 64 bits hold it with its noise."""


def in_steps(values: Tensor, deviation: float) -> Tensor:
    """Return values as whole steps of the grid of ``deviation``, rounded towards zero: sums are exact.

    Snapping moves two neighbouring inputs apart by less than one step in each of ``n`` values, so by
    less than ``sqrt(n)`` steps in all: ``most_noise`` says up to where the margin covers that.
    """
    return _checked(values.double() / grid(deviation), deviation).trunc().long()


def add_up(total: Tensor, steps: Tensor, deviation: float) -> Tensor:
    """Return the sum of two tensors of whole steps of the grid of ``deviation``."""
    return _checked(total + steps, deviation)


def noisy_steps(steps: Tensor, deviation: float, stream: NoiseStream) -> Tensor:
    """Return whole steps of the grid of ``deviation`` with Gaussian noise, as values in float64."""
    noise = discrete_gaussian(steps.numel(), _deviation_in_steps(deviation), stream)
    return (steps + torch.from_numpy(noise).view(steps.shape).to(steps.device)).double() * grid(deviation)


def snap(values: Tensor, width: float) -> Tensor:
    """Return values on the grid of steps of ``width``, in float64, each rounded towards zero.

    No value grows, so a vector of bounded length stays within its bound. Sums of snapped values are
    exact in float64 below 2^53 steps, in whatever order they are added.
    """
    return (values.double() / width).trunc() * width


def power_of_two(length: float) -> float:
    """Return the largest power of two that is no more than a length."""
    return math.ldexp(0.5, math.frexp(length)[1])


def grid(deviation: float) -> float:
    """Return the width of a step: a power of two of which a deviation has ``STEPS`` or more."""
    if not 2.0**-900 <= deviation <= 2.0**900:
        raise FedcueError(
            f"Noise of deviation {deviation} cannot be drawn. Give a noise, a clip and a radius whose "
            "product is positive and between 1e-270 and 1e270."
        )
    return power_of_two(deviation) / STEPS


def most_noise(values: int) -> float:
    """Return the largest deviation, in units of the sensitivity, whose margin pays for snapping.

    A release of ``n`` values moves by ``sqrt(n)`` steps more when it is snapped, and a step is at most
    the deviation divided by ``STEPS``. Half of the margin covers that; the other half covers that
    lengths are computed in float64 when contributions are clipped.
    """
    return STEPS / (2 * MARGIN) / math.sqrt(max(values, 1))


def _deviation_in_steps(deviation: float) -> int:
    """Return the deviation with its margin as a whole number of steps, rounded up."""
    exact = math.ceil(deviation / grid(deviation))
    return exact + exact // MARGIN + 1


def _checked(steps: Tensor, deviation: float) -> Tensor:
    """Return steps, or refuse those that 64 bits do not hold with their noise."""
    if not bool((steps.abs() < _MOST_STEPS).all()):  # also false where a value is not a number
        width = grid(deviation)
        largest = float(steps.double().abs().max()) * width
        raise FedcueError(
            f"A value of size {largest:g} gets noise on a grid of {width:g}, which reaches up to "
            f"{_MOST_STEPS * width:g}. Give a larger noise, or a smaller clip or radius."
        )
    return steps
