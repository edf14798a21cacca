"""Secure summation as a way of adding up: clients send words modulo 2^64, the server learns their sum.

In a deployment the words are masked (``fedcue.secure``). Masks cancel, so a simulation adds the same words
without any and ends with the same bits. Sums of words are exact and do not depend on the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from pydantic import Field

from fedcue.aggregate.mean import Adding, Summing, Sums
from fedcue.aggregate.robust import Aggregation
from fedcue.errors import ClientError, ConfigError
from fedcue.secure.fixed_point import FixedPoint, Shapes, Words
from fedcue.secure.refusals import OutOfRange
from fedcue.types import Tensors, TensorSpec, Update


class Secure(Aggregation):
    """The mean of all updates, of which the server learns sums and never a single one."""

    name: ClassVar[str] = "secure"
    sums_only: ClassVar[bool] = True

    norm_bound: None = Field(default=None, description="not here: nobody sees a single change")
    threshold: float = Field(
        default=2 / 3, ge=0.5, le=1, description="a sum needs more than this share of the clients asked"
    )
    fraction_bits: int = Field(default=32, ge=0, le=52, description="bits after the point of a number")
    limit: float = Field(default=2.0**20, gt=0, description="largest number; a client beyond it is left out")

    @property
    def plain(self) -> bool:
        """Whether nothing is done but adding up."""
        return True

    @property
    def least(self) -> int:
        """A sum hides a client among at least one other."""
        return 2

    @property
    def fixed_point(self) -> FixedPoint:
        """How numbers become words."""
        return FixedPoint(self.fraction_bits, self.limit)

    def needed(self, asked: int) -> int:
        """Return how many of the clients asked must stay to the end: more than half of them."""
        return max(self.least, min(asked, math.floor(self.threshold * asked) + 1))

    def check(self, clients: int, first: int | None = None) -> None:
        """Refuse rounds in which a sum would be a single update, or could wrap around."""
        asked = (
            {"clients_per_round": clients}
            if first is None
            else {"clients_per_round": clients, "warm_start": first}
        )
        for setting, number in asked.items():
            if number < self.least:
                raise ConfigError(
                    f"aggregate=secure hides a client among others, but {setting}={number}. "
                    f"Give {setting}={self.least} or more."
                )
            self.fixed_point.check_clients(number)

    def leave(self, update: Update, summing: Summing) -> Update:
        """Return the words of what is added up of an update; the training loss stays at the client."""
        fixed, total = self.fixed_point, summing.sums()
        total.add(summing.prepare(update))
        words = {}
        for name, tensor in total.tensors.items():
            try:
                words[name] = torch.from_numpy(fixed.words(name, tensor.numpy()))
            except OutOfRange as error:
                raise ClientError(
                    f"its {name} holds numbers beyond aggregate.limit={self.limit:g}; a larger one needs "
                    "fewer aggregate.fraction_bits"
                ) from error
        return replace(update, tensors=words, loss=None)

    def adding(self, reference: Tensors, summing: Summing) -> Adding:
        """Return what adds up words."""
        return WordAdding(self.fixed_point, summing.sums())


@dataclass
class WordAdding:
    """Adds words modulo 2^64."""

    fixed: FixedPoint
    total: Sums
    words: dict[str, Words] = field(default_factory=dict)

    def add(self, update: Update) -> None:
        """Add a client's words, or the part of a secure sum that stands for it."""
        self.total.count(update)
        self.fixed.check_clients(self.total.updates)
        for name, tensor in update.tensors.items():
            own = tensor.numpy()
            self.words[name] = self.words[name] + own if name in self.words else own

    def sums(self) -> Sums:
        """Return the numbers that the sums of the words stand for."""
        numbers = {name: self.fixed.numbers(words) for name, words in self.words.items()}
        self.total.tensors = {name: torch.from_numpy(values) for name, values in numbers.items()}
        return self.total


def word_shapes(
    specs: Iterable[TensorSpec], prepare: Callable[[Update], Update] = lambda update: update
) -> Shapes:
    """Return the shapes of a client's words, as they follow from what it uploads."""
    return {name: tuple(tensor.shape) for name, tensor in prepare(zeros_of(specs)).tensors.items()}


def zeros_of(specs: Iterable[TensorSpec]) -> Update:
    """Return an update of these tensors, all of them zeros; a size that is not known is zero."""
    zeros = {spec.name: torch.zeros([size or 0 for size in spec.shape], dtype=spec.dtype) for spec in specs}
    return Update(0, 1, zeros)
