"""Fixed-point numbers modulo 2^64: sums of them are exact and do not depend on the order.

A value is multiplied by a power of two and rounded once, to the nearest integer. All further sums
are sums of integers, so a simulator and a deployment that quantise alike end with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcue.secure.refusals import OutOfRange, SecureSumError

Words = NDArray[np.uint64]
"""Integers modulo 2^64; the upper half stands for negative numbers (two's complement)."""

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of every named array."""

_EXACT = 2**53
"""Up to here every integer is a float64, so that quantising rounds once and no more."""


@dataclass(frozen=True)
class FixedPoint:
    """How numbers become words: ``fraction_bits`` after the point, no value beyond ``limit``."""

    fraction_bits: int = 32
    limit: float = 2.0**20

    def __post_init__(self) -> None:
        if not 0 <= self.fraction_bits <= 52:
            raise SecureSumError(f"fraction_bits is {self.fraction_bits}. Allowed: 0 to 52.")
        if not (math.isfinite(self.limit) and self.limit > 0):
            raise SecureSumError(f"limit is {self.limit}. Allowed: a finite number above 0.")
        if self.limit * self.scale > _EXACT:
            raise SecureSumError(
                f"limit {self.limit:g} with {self.fraction_bits} fraction bits needs more than 53 bits. "
                f"Allowed with so many bits: a limit of up to {_EXACT / self.scale:g}."
            )

    @property
    def scale(self) -> float:
        """Return what a value is multiplied by."""
        return 2.0**self.fraction_bits

    @property
    def most_clients(self) -> int:
        """Return how many clients can be added up before a sum could wrap around."""
        return (2**63 - 1) // max(1, math.ceil(self.limit * self.scale))

    def check_clients(self, clients: int) -> None:
        """Refuse a sum over so many clients that it could wrap around."""
        if clients > self.most_clients:
            raise SecureSumError(
                f"A sum over {clients} clients may not fit 64 bits: with limit {self.limit:g} and "
                f"{self.fraction_bits} fraction bits it holds {self.most_clients}. Lower one of them."
            )

    def pack(self, tensors: Mapping[str, NDArray[np.generic]]) -> Words:
        """Return all arrays as one vector of words, by name in alphabetical order."""
        return join({name: self.words(name, np.asarray(tensors[name])) for name in tensors})

    def unpack(self, words: Words, shapes: Shapes) -> dict[str, NDArray[np.float64]]:
        """Return the arrays of these shapes that a vector of words (or a sum of such) stands for."""
        return {name: self.numbers(own) for name, own in split(words, shapes).items()}

    def numbers(self, words: Words) -> NDArray[np.float64]:
        """Return the numbers that words stand for."""
        return words.view(np.int64).astype(np.float64) / self.scale

    def add_up(self, vectors: Iterable[Words]) -> Words:
        """Return the sum of the vectors: what secure summation computes without seeing them."""
        total: Words | None = None
        for count, vector in enumerate(vectors, start=1):
            self.check_clients(count)
            total = vector.copy() if total is None else total + vector
        if total is None:
            raise SecureSumError("No vector was given to add up. Give at least one.")
        return total

    def words(self, name: str, values: NDArray[np.generic]) -> Words:
        """Return an array as words of the same shape, or refuse it by its name."""
        if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
            raise SecureSumError(
                f"Tensor {name!r} is of type {values.dtype}. Allowed: booleans, integers and floats "
                "of at most 64 bits."
            )
        numbers = values.astype(np.float64)
        bad = np.flatnonzero(~(np.abs(numbers) <= self.limit))
        if bad.size:
            raise OutOfRange(
                f"Tensor {name!r} holds {numbers.ravel()[bad[0]]:g} at position {int(bad[0])} ({bad.size} "
                f"values of {numbers.size} are out of range). Allowed: numbers from -{self.limit:g} to "
                f"{self.limit:g}. Raise the limit of the fixed-point numbers or make the tensor smaller."
            )
        return np.rint(numbers * self.scale).astype(np.int64).view(np.uint64)


def join(words: Mapping[str, Words]) -> Words:
    """Return named words as one vector, by name in alphabetical order."""
    return np.concatenate([np.zeros(0, np.uint64), *(words[name].ravel() for name in sorted(words))])


def split(vector: Words, shapes: Shapes) -> dict[str, Words]:
    """Return the named words of these shapes that were joined to a vector."""
    expected = count_words(shapes)
    if vector.dtype != np.uint64 or vector.shape != (expected,):
        raise SecureSumError(
            f"A vector of {vector.shape} {vector.dtype} was given for arrays of {expected} numbers. "
            "Give one uint64 word for each number."
        )
    words, start = {}, 0
    for name in sorted(shapes):
        stop = start + math.prod(shapes[name])
        words[name] = vector[start:stop].reshape(shapes[name])
        start = stop
    return words


def count_words(shapes: Shapes) -> int:
    """Return how many words arrays of these shapes take."""
    return sum(math.prod(shape) for shape in shapes.values())
