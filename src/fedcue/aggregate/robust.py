"""Combining updates when some clients send wrong ones, by mistake or on purpose.

Every rule gives sums back: a method never knows which rule is in force. A rule works on changes:
what a client sent minus what all clients were sent, or the tensor itself where nothing like it was
sent down (centroids). The rows a client left exactly as they were say nothing about it; each row's
statistic is taken over the clients that hold the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat

from fedcue.aggregate.agreement import agreement, bounded, by_row, changed, krum, nearest, statistics
from fedcue.aggregate.mean import Adding, PlainAdding, Summing, Sums, Weighting, sum_updates
from fedcue.errors import ConfigError
from fedcue.options import Options
from fedcue.types import Tensors, TensorTable, Update


class Aggregation(Options):
    """Base of all rules: an optional bound on how far one client's update may go."""

    name: ClassVar[str]
    sums_only: ClassVar[bool] = False
    """Whether the server sees no single update."""

    norm_bound: PositiveFloat | Literal["median"] | None = Field(
        default=None, description="longest change of a client; median: that of the round's changes"
    )

    @property
    def plain(self) -> bool:
        """Whether nothing is done but adding up."""
        return False

    @property
    def least(self) -> int:
        """The fewest updates with which the rule keeps its promise."""
        return 1

    def needed(self, asked: int) -> int:
        """Return the fewest updates of so many clients asked with which it keeps its promise."""
        return self.least

    @property
    def described(self) -> str:
        """Its name, with the bound if there is one."""
        return self.name if self.norm_bound is None else f"{self.name} with norm_bound={self.norm_bound}"

    def check(self, clients: int, first: int | None = None) -> None:
        """Raise a ``ConfigError`` if the rule needs more than ``clients`` updates a round.

        ``first`` clients are asked before round 0, if any are.
        """
        if clients < self.least:
            raise ConfigError(
                f"aggregate={self.name} needs at least {self.least} updates per round against its attackers, "
                f"but clients_per_round={clients}. Give clients_per_round={self.least} or more, or fewer "
                "aggregate.attackers."
            )

    def leave(self, update: Update, summing: Summing) -> Update:
        """Return an update as a client sends it to be added up: here as it is."""
        return update

    def adding(self, reference: Tensors, summing: Summing) -> Adding:
        """Return what adds up the updates of clients that were all sent ``reference``."""
        return CollectedAdding(self, reference, summing)

    def sums(
        self, updates: Sequence[Update], reference: Tensors, table: TensorTable, weighting: Weighting
    ) -> Sums:
        """Return what stands for the sums of all updates."""
        return sum_updates(updates, table, weighting)


@dataclass
class CollectedAdding:
    """Collects the updates of a round, then applies a rule to all of them."""

    rule: Aggregation
    reference: Tensors
    summing: Summing
    received: list[Update] = field(default_factory=list)

    def add(self, update: Update) -> None:
        """Keep an update; what a client claims of its number of images is not trusted."""
        self.received.append(self.summing.prepare(_class_means(update, self.summing.table)))

    def sums(self) -> Sums:
        """Return what the rule makes of the updates."""
        updates, bound = self.received, self.rule.norm_bound
        if not updates:
            return self.summing.sums()
        if bound is not None:
            updates = bounded(updates, self.reference, bound)
        return self.rule.sums(updates, self.reference, self.summing.table, self.summing.weighting)


def _class_means(update: Update, table: TensorTable) -> Update:
    """Return class means instead of class sums: a holder of a class has both a count and a mean of it.

    Counts that noise is on are left as they are.
    """
    tensors, kinds = dict(update.tensors), table.kinds
    for name in [name for name in tensors if kinds.get(name) == "class_counts"]:
        counts = tensors[name]
        if counts.is_floating_point():
            continue
        for sums in [other for other in tensors if kinds.get(other) == "class_sums"]:
            means = torch.nan_to_num(tensors[sums], nan=0.0) / counts.long()[:, None]
            tensors[name] = (counts > 0) & (means != 0).any(-1).all(0)
            tensors[sums] = torch.where(tensors[name][:, None], means, 0.0)
    return replace(update, tensors=tensors)


class Mean(Aggregation):
    """The mean of all updates: one bad client moves it anywhere, unless its change is bounded."""

    name: ClassVar[str] = "mean"

    @property
    def plain(self) -> bool:
        """Whether updates are only added up, one by one."""
        return self.norm_bound is None

    def adding(self, reference: Tensors, summing: Summing) -> Adding:
        """Return a running sum, if no bound is asked for."""
        if self.plain:
            return PlainAdding(summing)
        return super().adding(reference, summing)


class Robust(Aggregation):
    """Base of the rules that withstand some bad clients: every change is first bounded."""

    norm_bound: PositiveFloat | Literal["median"] = Field(
        default="median", description="longest change of a client; median: that of the round's changes"
    )
    attackers: int = Field(default=2, ge=1, description="bad clients per round to withstand")


class RowWise(Robust):
    """Base of the rules that look at each coordinate: ``trim`` values go at either end.

    Clients that hold different classes differ in every row of the head, and the middle of their
    changes is nothing like the mean: seven clients without a class outvote three that have it.
    With ``mix`` each change first becomes the mean of the changes that agree with it most, all but
    ``attackers`` of them, so that honest ones are alike (nearest-neighbour mixing).
    """

    mix: bool = Field(default=True, description="average each change with those it agrees with")

    @property
    def least(self) -> int:
        """Attackers must not be half of all."""
        return 2 * self.attackers + 1

    def trim(self, clients: int) -> int:
        """Return how many values go at either end."""
        return self.attackers

    def sums(
        self, updates: Sequence[Update], reference: Tensors, table: TensorTable, weighting: Weighting
    ) -> Sums:
        """Return the number of updates times the middle of the changes."""
        mixing = None
        if self.mix and changed(updates, reference):
            mixing = nearest(agreement(updates, reference), max(len(updates) - self.attackers, 1))
        return by_row(updates, reference, table, self.trim(len(updates)), self.attackers, mixing)


class TrimmedMean(RowWise):
    """In each coordinate the mean without the ``attackers`` largest and smallest changes.

    A row with fewer than ``2 * attackers + 1`` holders loses as many as leave one or two.
    """

    name: ClassVar[str] = "trimmed_mean"


class Median(RowWise):
    """In each coordinate the median of the changes."""

    name: ClassVar[str] = "median"

    def trim(self, clients: int) -> int:
        """Return more than there are: one or two always stay."""
        return clients


class Krum(Robust):
    """The mean of the ``keep`` updates that agree best with the others (``keep=1``: only one).

    This is Multi-Krum with agreement in place of distance, which clients with different classes
    do not show.
    Agreement is about what is trained. Of class statistics, in every round and before round 0, the median
    over the holders is taken: a client that trains as it should may still lie about them.
    """

    name: ClassVar[str] = "krum"

    keep: int | None = Field(default=None, ge=1, description="updates kept (default: all but the attackers)")

    @property
    def least(self) -> int:
        """The guarantee of the rule needs two more than a majority."""
        return 2 * self.attackers + 3

    def check(self, clients: int, first: int | None = None) -> None:
        """Refuse rounds that are too small, and to keep so many that attackers are among them."""
        super().check(clients)
        if self.keep is not None and self.keep > clients - self.attackers:
            raise ConfigError(
                f"aggregate.keep={self.keep} of {clients} updates would keep attackers. "
                f"Give at most {clients - self.attackers}, or fewer aggregate.attackers."
            )

    def sums(
        self, updates: Sequence[Update], reference: Tensors, table: TensorTable, weighting: Weighting
    ) -> Sums:
        """Return the sums of the chosen updates, and the middle of all class statistics."""
        chosen = list(range(len(updates)))
        if changed(updates, reference):
            most = max(len(updates) - self.attackers, 1)
            chosen = krum(agreement(updates, reference), self.attackers, min(self.keep or most, most))
        sums = sum_updates([updates[index] for index in chosen], table, weighting)
        sums.tensors |= statistics(updates, reference, len(updates), self.attackers)
        return sums
