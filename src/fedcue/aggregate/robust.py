"""Combining updates when some clients send wrong ones, by mistake or on purpose.

Every rule has the shape of ``sum_updates`` and gives sums back, so that a method never knows which
rule is in force. A rule works on changes: what a client sent minus what all clients were sent, or
the tensor itself where nothing like it was sent down (centroids). The rows a client left exactly as
they were say nothing about it; each row's statistic is taken over the clients that hold the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat

from fedcue.aggregate.changes import agreement, bounded, by_row, changed, krum, nearest
from fedcue.aggregate.mean import Combine, Sums, Weighting, sum_updates
from fedcue.errors import ConfigError
from fedcue.registry import Options
from fedcue.types import Tensors, Update


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

    @property
    def least(self) -> int:
        """The fewest updates with which the rule keeps its promise."""
        return 1

    def check(self, clients: int) -> None:
        """Raise a ``ConfigError`` if the rule needs more than ``clients`` updates a round."""
        if clients < self.least:
            raise ConfigError(
                f"aggregate={self.name} needs at least {self.least} updates per round against its attackers, "
                f"but clients_per_round={clients}. Give clients_per_round={self.least} or more, or fewer "
                "aggregate.attackers."
            )

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
        self, updates: Sequence[Update], reference: Tensors, weighting: Weighting, plain: tuple[str, ...]
    ) -> Sums:
        """Return the number of updates times the middle of the changes."""
        mixing = None
        if self.mix and changed(updates, reference):
            mixing = nearest(agreement(updates, reference), max(len(updates) - self.attackers, 1))
        return by_row(updates, reference, self.trim(len(updates)), mixing)


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
    Before round 0 there are only centroids, which differ by what classes a client has: their
    median over the holders is taken.
    """

    name: ClassVar[str] = "krum"

    keep: int | None = Field(default=None, ge=1, description="updates kept (default: all but the attackers)")

    @property
    def least(self) -> int:
        """The guarantee of the rule needs two more than a majority."""
        return 2 * self.attackers + 3

    def check(self, clients: int) -> None:
        """Refuse rounds that are too small, and to keep so many that attackers are among them."""
        super().check(clients)
        if self.keep is not None and self.keep > clients - self.attackers:
            raise ConfigError(
                f"aggregate.keep={self.keep} of {clients} updates would keep attackers. "
                f"Give at most {clients - self.attackers}, or fewer aggregate.attackers."
            )

    def sums(
        self, updates: Sequence[Update], reference: Tensors, weighting: Weighting, plain: tuple[str, ...]
    ) -> Sums:
        """Return the sums of the chosen updates."""
        if not changed(updates, reference):
            return by_row(updates, reference, len(updates))
        most = max(len(updates) - self.attackers, 1)
        chosen = krum(agreement(updates, reference), self.attackers, min(self.keep or most, most))
        return sum_updates([updates[index] for index in chosen], weighting, plain)
