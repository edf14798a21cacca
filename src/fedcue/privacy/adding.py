"""Adding up under differential privacy: clipped updates, and noise before anybody sees their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from fedcue.aggregate.mean import Adding, Sums
from fedcue.privacy.sensitivity import CHANGES
from fedcue.privacy.shares import Shares
from fedcue.privacy.stream import NoiseStream
from fedcue.types import Kind, Tensors, TensorTable, Update

if TYPE_CHECKING:
    from fedcue.privacy.differential import DifferentialPrivacy


@dataclass
class PrivateAdding:
    """Adds up clipped updates; noise comes before anybody sees the sums.

    A trusted server adds whole steps of the noise's grid. Sums of floating-point numbers round, by more or
    less as other clients' numbers are: one client could then move a sum farther than its update is long.
    """

    privacy: DifferentialPrivacy
    inner: Adding
    reference: Tensors
    table: TensorTable
    stream: Callable[[], NoiseStream]
    shares: Shares | None = None
    steps: Tensors = field(default_factory=dict)

    def add(self, update: Update) -> None:
        """Add an update, clipped once more where the server is the one to protect it."""
        if not self.privacy.central:
            return self.inner.add(update)
        update = self.privacy.bounded(update, self.reference, self.table)
        steps = self.privacy.in_steps(update.tensors, self.table)
        self.steps = self.privacy.add_up(self.steps, steps, self.table)
        return self.inner.add(replace(update, tensors={}))  # what is left of it to count

    def sums(self) -> Sums:
        """Return the sums with noise, without classes that are rare or absent."""
        sums = self.inner.sums()
        if self.privacy.central:
            sums.tensors = self.privacy.noisy_steps(self.steps, self.table, self.stream())
        sums.deviations = self.privacy.deviations(sums, self.table, self.shares)
        self.privacy.drop_rare(sums, self.table)
        return sums


def clipped(update: Update, reference: Tensors, table: TensorTable, bound: float) -> Update:
    """Shorten the change of all trained tensors together to ``bound``; the rest stays as it is.

    A tensor that was not sent down is a change as it is.
    """
    names = [name for name in update.tensors if table.kinds[name] in CHANGES]
    start = {name: reference.get(name, torch.zeros(())).double() for name in names}
    changes = {name: update.tensors[name].double() - start[name] for name in names}
    length = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
    factor = bound / max(bound, length)
    return replace(
        update, tensors={**update.tensors, **{name: start[name] + factor * changes[name] for name in names}}
    )


def bounded_statistics(
    update: Update, table: TensorTable, units: Mapping[Kind, float], bound: float
) -> Update:
    """Shorten all statistics of a client together to ``bound``, each measured in its unit."""
    kinds = {name: table.kinds[name] for name in update.tensors}
    exact = {name: update.tensors[name].double() for name in kinds if kinds[name] in units}
    squares = (float((exact[name] / units[kinds[name]]).square().sum()) for name in exact)
    length = math.sqrt(sum(squares))
    factor = bound / max(bound, length)
    return replace(update, tensors={**update.tensors, **{name: factor * exact[name] for name in exact}})
