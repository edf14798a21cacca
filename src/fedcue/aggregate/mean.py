"""Weighted means of updates, computed as running sums so that nothing but the sums is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedcue.types import Update

Weighting = Literal["uniform", "size"]


@dataclass
class Sums:
    """Named sums over updates and the total weight; everything a server needs for a mean."""

    weight: float = 0.0
    updates: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def mean(self, name: str) -> Tensor:
        """Return the weighted mean of the tensor ``name`` in float32."""
        return (self.tensors[name] / self.weight).float()

    def total(self, name: str) -> Tensor:
        """Return the sum of the tensor ``name`` in float32."""
        return self.tensors[name].float()


class Combine(Protocol):
    """From updates to sums: ``sum_updates``, or a rule that stands in for it."""

    def __call__(
        self, updates: Iterable[Update], weighting: Weighting = "uniform", plain: tuple[str, ...] = ()
    ) -> Sums:
        """Return the sums a method takes its means and totals from."""


def sum_updates(
    updates: Iterable[Update], weighting: Weighting = "uniform", plain: tuple[str, ...] = ()
) -> Sums:
    """Add up ``updates`` one by one, in the order given, in float64.

    Each counts once, or as often as it has samples; the tensors named ``plain`` always once.
    """
    sums = Sums()
    for update in updates:
        weight = float(update.samples) if weighting == "size" else 1.0
        sums.weight += weight
        sums.updates += 1
        for name, tensor in update.tensors.items():
            term = tensor.to(torch.float64) * (1.0 if name in plain else weight)
            sums.tensors[name] = sums.tensors[name] + term if name in sums.tensors else term
    return sums
