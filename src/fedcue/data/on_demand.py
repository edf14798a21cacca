"""Sequences that are computed, not stored: a million clients take no more room than ten."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

Item = TypeVar("Item")


class OnDemand(Sequence[Item]):
    """Base of sequences whose items are made whenever they are asked for."""

    @abstractmethod
    def make(self, number: int) -> Item:
        """Make the item at a position that is known to exist."""

    @overload
    def __getitem__(self, number: int) -> Item: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Item]: ...

    def __getitem__(self, number: int | slice) -> Item | Sequence[Item]:
        """Make one item, or a list of some."""
        if isinstance(number, slice):
            return [self.make(one) for one in range(*number.indices(len(self)))]
        return self.make(range(len(self))[number])


@dataclass(frozen=True)
class Computed(OnDemand[Item]):
    """A sequence of ``length`` items, each the result of a function of its position."""

    length: int
    function: Callable[[int], Item]

    def __len__(self) -> int:
        """Return the number of items."""
        return self.length

    def make(self, number: int) -> Item:
        """Call the function."""
        return self.function(number)
