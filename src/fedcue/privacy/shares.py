"""Noise in shares: each client adds a part of it to its words before they are masked.

A secure sum then has all of the noise, and nobody ever holds a number without any. Each share is a
discrete Gaussian of ``s`` steps. The sum of ``n`` of them is not one, but its Renyi divergence exceeds that
of a Gaussian of ``s sqrt(n)`` steps by less than 10^-1000 in any number of values that fits a computer, if
``s`` is 16 or more: Kairouz, Liu and Steinke (ICML 2021), whose excess is a sum of ``10 exp(-pi^2 s^2)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fedcue.errors import ConfigError
from fedcue.privacy.discrete import LARGEST_SCALE, discrete_gaussian
from fedcue.privacy.noise import MARGIN
from fedcue.privacy.stream import NoiseStream
from fedcue.secure.fixed_point import FixedPoint
from fedcue.types import Tensors, Update

LEAST_STEPS = 16
"""Deviation of a share in steps, from which on the sum of shares is as good as a Gaussian."""

_ROOM = 64
"""Deviations of a share that the fixed-point numbers must have room for."""


@dataclass(frozen=True)
class Shares:
    """The clients among whom the noise of a sum is shared."""

    fixed: FixedPoint
    honest: int
    """Clients whose shares are in every sum and stay secret."""

    def __post_init__(self) -> None:
        if self.honest < 1:
            raise ConfigError(
                "privacy.colluding leaves no client whose noise counts. Give fewer, a larger "
                "aggregate.threshold or more clients_per_round."
            )

    def add(self, update: Update, deviations: Mapping[str, float], stream: NoiseStream) -> Update:
        """Return an update of words with the client's share of the noise on them."""
        noisy = {}
        for name in sorted(update.tensors):
            words = update.tensors[name]
            noise = discrete_gaussian(words.numel(), self.steps(deviations[name]), stream)
            noisy[name] = torch.from_numpy(words.numpy() + noise.view("uint64").reshape(words.shape))
        return replace(update, tensors=noisy)

    def steps(self, deviation: float) -> int:
        """Return the deviation of a share in whole steps; that of all honest ones is no less than asked."""
        exact = math.ceil(deviation * self.fixed.scale / math.sqrt(self.honest))
        steps = exact + exact // MARGIN + 1
        most = min(LARGEST_SCALE, int(self.fixed.limit * self.fixed.scale) // _ROOM)
        if not LEAST_STEPS <= steps <= most:
            raise ConfigError(
                f"A client's share of the noise has a deviation of {steps} steps of the fixed-point numbers. "
                f"Allowed: {LEAST_STEPS} to {most}. Give other aggregate.fraction_bits or another "
                "aggregate.limit."
            )
        return steps

    def rounding(self, tensors: Tensors, sensitivities: Mapping[str, float]) -> float:
        """Return how much farther than one sensitivity a record moves words than numbers.

        Rounding moves two neighbouring inputs apart by at most one step in each value.
        """
        steps = {name: sensitivity * self.fixed.scale for name, sensitivity in sensitivities.items()}
        return math.sqrt(sum(tensor.numel() / steps[name] ** 2 for name, tensor in tensors.items()))
