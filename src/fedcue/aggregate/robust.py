"""Combining updates when some clients send wrong ones, by mistake or on purpose.

Every rule has the shape of ``sum_updates`` and gives sums back, so that a method never knows which
rule is in force. A rule works on changes: what a client sent minus what all clients were sent, or
the tensor itself where nothing like it was sent down (centroids). The rows a client left exactly as
they were say nothing about it; each row's statistic is taken over the clients that hold the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from fedcue.aggregate.mean import Combine, Sums, Weighting, sum_updates
from fedcue.errors import ConfigError
from fedcue.registry import Options
from fedcue.types import Tensors, Update

FEW = 3
"""Below so many holders of a row there is no majority: the mean of bounded changes is taken."""


class Aggregation(Options):
    """Base of all rules: an optional bound on how far one client's update may go."""

    name: ClassVar[str]

    norm_bound: PositiveFloat | Literal["median"] | None = Field(
        default=None, description="longest change of a client; median: that of the round's changes"
    )

    @property
    def plain(self) -> bool:
        """Whether nothing is done but adding up."""
        return False

    def check(self, clients: int) -> None:
        """Raise a ``ConfigError`` if the rule needs more than ``clients`` updates a round."""

    def combiner(self, reference: Tensors) -> Combine:
        """Return the rule for updates of clients that were all sent ``reference``."""

        def combine(
            updates: Iterable[Update], weighting: Weighting = "uniform", plain: tuple[str, ...] = ()
        ) -> Sums:
            received = list(updates)
            if self.norm_bound is not None:
                received = bounded(received, reference, self.norm_bound)
            return self.sums(received, reference, weighting, plain)

        return combine

    def sums(
        self, updates: Sequence[Update], reference: Tensors, weighting: Weighting, plain: tuple[str, ...]
    ) -> Sums:
        """Return what stands for the sums of all updates."""
        return sum_updates(updates, weighting, plain)


class Mean(Aggregation):
    """The mean of all updates: one bad client moves it anywhere, unless its change is bounded."""

    name: ClassVar[str] = "mean"

    @property
    def plain(self) -> bool:
        """Whether updates are only added up, one by one."""
        return self.norm_bound is None

    def combiner(self, reference: Tensors) -> Combine:
        """Return ``sum_updates`` itself, if no bound is asked for."""
        return sum_updates if self.plain else super().combiner(reference)


class TrimmedMean(Aggregation):
    """In each coordinate the mean without the ``attackers`` largest and smallest changes.

    A row with fewer than ``2 * attackers + 1`` holders loses as many as leave one or two.
    """

    name: ClassVar[str] = "trimmed_mean"

    attackers: int = Field(default=2, ge=1, description="bad clients per round to withstand")

    def check(self, clients: int) -> None:
        """Refuse rounds that would be trimmed to nothing."""
        _need(self.name, clients, 2 * self.attackers + 1, self.attackers)

    def sums(
        self, updates: Sequence[Update], reference: Tensors, weighting: Weighting, plain: tuple[str, ...]
    ) -> Sums:
        """Return the number of updates times the trimmed mean."""
        return _by_row(updates, reference, self.attackers)


class Median(Aggregation):
    """In each coordinate the median of the changes."""

    name: ClassVar[str] = "median"

    def check(self, clients: int) -> None:
        """Refuse rounds in which one client is half of all."""
        _need(self.name, clients, FEW, 1)

    def sums(
        self, updates: Sequence[Update], reference: Tensors, weighting: Weighting, plain: tuple[str, ...]
    ) -> Sums:
        """Return the number of updates times the median."""
        return _by_row(updates, reference, len(updates))


class Krum(Aggregation):
    """The mean of the ``keep`` updates nearest to the others (Multi-Krum; ``keep=1`` is Krum).

    Before round 0 there are only centroids, which differ by what classes a client has: their
    median over the holders is taken.
    """

    name: ClassVar[str] = "krum"

    attackers: int = Field(default=2, ge=1, description="bad clients per round to withstand")
    keep: int | None = Field(default=None, ge=1, description="updates kept (default: all but the attackers)")

    def check(self, clients: int) -> None:
        """Refuse rounds too small for the guarantee of the rule."""
        _need(self.name, clients, 2 * self.attackers + 3, self.attackers)
        if self.keep is not None and self.keep > clients - self.attackers:
            raise ConfigError(
                f"aggregate.keep={self.keep} of {clients} updates would keep attackers. "
                f"Give at most {clients - self.attackers}, or fewer aggregate.attackers."
            )

    def sums(
        self, updates: Sequence[Update], reference: Tensors, weighting: Weighting, plain: tuple[str, ...]
    ) -> Sums:
        """Return the sums of the chosen updates."""
        if not _changed(updates, reference):
            return _by_row(updates, reference, len(updates))
        changes = torch.stack([_flat_change(update, reference) for update in updates])
        chosen = krum(changes, self.attackers, self.keep or max(len(updates) - self.attackers, 1))
        return sum_updates([updates[index] for index in chosen], weighting, plain)


def krum(changes: Tensor, attackers: int, keep: int) -> list[int]:
    """Return which ``keep`` of ``changes [n, D]`` have the smallest distances to their neighbours."""
    count = len(changes)
    distances = torch.cdist(changes, changes, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    distances = torch.nan_to_num(distances, nan=torch.inf).fill_diagonal_(0)
    neighbours = max(count - attackers - 2, 1)
    scores = distances.sort(1).values[:, 1 : neighbours + 1].sum(1)
    return sorted(scores.argsort(stable=True)[:keep].tolist())


def rowwise(changes: Tensor, trim: int) -> Tensor:
    """Return, per row of ``changes [n, ..., d]``, its holders times their trimmed mean.

    ``trim`` largest and smallest values go in each coordinate, but always one or two stay: a large
    ``trim`` gives the median. Rows with few holders take the mean of changes that are not longer
    than the median row of the tensor.
    """
    clients, width = len(changes), changes.shape[-1] if changes.ndim > 2 else 1
    rows = torch.nan_to_num(changes.double(), nan=0.0).reshape(clients, -1, width)  # [n, R, d]
    holds = (rows != 0).any(-1)  # [n, R]
    holders = holds.sum(0)  # [R]
    ordered = rows.masked_fill(~holds[..., None], torch.inf).sort(0).values
    cut = ((holders - 1) // 2).clamp(min=0, max=trim)
    place = torch.arange(clients, device=rows.device)[:, None]
    kept = (place >= cut) & (place < holders - cut)  # [n, R]
    middle = ordered.masked_fill(~kept[..., None], 0).sum(0) / (holders - 2 * cut).clamp(min=1)[:, None]
    few = (rows * _row_scales(rows)).sum(0)
    total = torch.where((holders < FEW)[:, None], few, middle * holders[:, None])
    return total.reshape(changes.shape[1:])


def bounded(updates: Sequence[Update], reference: Tensors, bound: float | Literal["median"]) -> list[Update]:
    """Shorten every change to at most ``bound``, or to the median length of the changes given.

    What is no change (centroids) is shortened row by row to the median length of its rows.
    """
    names = _changed(updates, reference)
    lengths = torch.stack([_flat_change(update, reference).norm() for update in updates])
    limit = torch.quantile(lengths, 0.5) if bound == "median" else torch.tensor(bound)
    factors = torch.nan_to_num((limit / lengths).clamp(max=1), nan=1.0)
    others = [name for name, tensor in updates[0].tensors.items() if name not in names and tensor.ndim > 1]
    tensors = [dict(update.tensors) for update in updates]
    for name in names:
        start = reference[name].double()
        for own, factor in zip(tensors, factors, strict=True):
            own[name] = start + factor * (own[name].double() - start)
    for name in others:
        stacked = torch.stack([own[name].double() for own in tensors])
        rows = stacked.reshape(len(tensors), -1, stacked.shape[-1])
        for own, value in zip(tensors, (rows * _row_scales(rows)).reshape(stacked.shape), strict=True):
            own[name] = value
    return [replace(update, tensors=own) for update, own in zip(updates, tensors, strict=True)]


def _by_row(updates: Sequence[Update], reference: Tensors, trim: int) -> Sums:
    """Return sums that stand for the row-wise statistics: what was sent down, n times, plus changes.

    Every client counts alike. With ``trim=0`` these are the plain sums wherever a row has at least
    three holders.
    """
    changed = _changed(updates, reference)
    sums = Sums(float(len(updates)), len(updates))
    for name in updates[0].tensors:
        values = torch.stack([update.tensors[name].double() for update in updates])
        start = reference[name].double() if name in changed else torch.zeros_like(values[0])
        sums.tensors[name] = len(updates) * start + rowwise(values - start, trim)
    return sums


def _changed(updates: Sequence[Update], reference: Tensors) -> list[str]:
    return [name for name in updates[0].tensors if name in reference]


def _flat_change(update: Update, reference: Tensors) -> Tensor:
    """Return all of an update's changes as one vector."""
    names = [name for name in update.tensors if name in reference]
    parts = [(update.tensors[name].double() - reference[name].double()).flatten() for name in names]
    return torch.cat(parts) if parts else torch.zeros(1, dtype=torch.float64)


def _row_scales(rows: Tensor) -> Tensor:
    """Return the factors ``[n, R, 1]`` that shorten ``rows [n, R, d]`` to the median length of them."""
    lengths = rows.norm(dim=-1)
    held = lengths[lengths > 0]
    limit = torch.quantile(held, 0.5) if len(held) else lengths.new_tensor(1.0)
    scales: Tensor = (limit / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1)
    return scales[..., None]


def _need(rule: str, clients: int, least: int, attackers: int) -> None:
    if clients < least:
        raise ConfigError(
            f"aggregate={rule} against {attackers} bad clients needs at least {least} updates per round, "
            f"but clients_per_round={clients}. Give clients_per_round={least} or more, or fewer attackers."
        )
