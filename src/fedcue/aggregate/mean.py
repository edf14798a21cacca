"""Weighted means of updates, computed as running sums: nothing but the sums is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedcue.types import TensorTable, Update, take_rows

Weighting = Literal["uniform", "size"]


@dataclass
class Sums:
    """Named sums over updates, in the order in which they are added, in float64.

    Each update counts once or, with ``weighting="size"``, as often as it has samples; tensors that
    their table declares as not weighted, or that it does not know, always count once.
    """

    table: TensorTable
    weighting: Weighting = "uniform"
    weight: float = 0.0
    updates: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    each: list[Update] = field(default_factory=list)
    """The updates themselves, where the server needs every single one; of class rows a client's own."""
    deviations: Mapping[str, float] = field(default_factory=dict)
    """The deviation of the noise in each sum, where there is any: it is public."""

    def add(self, update: Update) -> None:
        """Add an update."""
        weight = self.count(update)
        if not update.tensors.keys().isdisjoint(self.table.each):
            self.each.append(_own_rows(update, self.table))
        for name, tensor in update.tensors.items():
            if self.table.kinds.get(name) == "own":
                continue
            term = tensor.to(torch.float64) * (weight if name in self.table.weighted else 1.0)
            self.tensors[name] = self.tensors[name] + term if name in self.tensors else term

    def count(self, update: Update) -> float:
        """Count an update without looking at its tensors; return its weight."""
        weight = float(update.samples) if self.weighting == "size" else 1.0
        self.weight += weight
        self.updates += 1
        return weight

    def mean(self, name: str) -> Tensor:
        """Return the weighted mean of the tensor ``name`` in float32."""
        return (self.tensors[name] / self.weight).float()

    def means(self) -> dict[str, Tensor]:
        """Return the weighted means of all tensors that clients train and send back."""
        return {name: self.mean(name) for name in self.table.averaged}

    def total(self, name: str) -> Tensor:
        """Return the sum of the tensor ``name`` in float32."""
        return self.tensors[name].float()


def _own_rows(update: Update, table: TensorTable) -> Update:
    """Return an update with the rows of the client's own classes only, and with these ``classes``.

    A class is its own if it counts at least one image of it.
    """
    kinds = table.kinds
    name = next((name for name in update.tensors if kinds.get(name) == "class_counts"), None)
    if name is None:
        return update
    classes = (update.tensors[name] >= 1).nonzero().flatten()
    rows = take_rows(update.tensors, table.class_axes, classes)
    return replace(update, tensors={**rows, "classes": classes})


class Adding(Protocol):
    """Adds up the updates of a round: a plain sum, a robust rule, or either one with noise."""

    def add(self, update: Update) -> None:
        """Take an update."""

    def sums(self) -> Sums:
        """Return the sums of all updates taken, or what stands for them."""


@dataclass(frozen=True)
class Summing:
    """How the updates of a method are added up."""

    table: TensorTable
    weighting: Weighting = "uniform"
    prepare: Callable[[Update], Update] = lambda update: update
    """From an update to what is added up of it (``Method.added``)."""

    def sums(self) -> Sums:
        """Return sums of nothing."""
        return Sums(self.table, self.weighting)


class PlainAdding:
    """Adds updates one by one; memory does not grow with their number."""

    def __init__(self, summing: Summing) -> None:
        self._total, self._prepare = summing.sums(), summing.prepare

    def add(self, update: Update) -> None:
        """Add an update."""
        self._total.add(self._prepare(update))

    def sums(self) -> Sums:
        """Return the sums."""
        return self._total


def sum_updates(updates: Iterable[Update], table: TensorTable, weighting: Weighting = "uniform") -> Sums:
    """Add up updates that are all at hand."""
    sums = Sums(table, weighting)
    for update in updates:
        sums.add(update)
    return sums
