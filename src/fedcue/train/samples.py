"""A set of images as a method sees it: batches of frozen prefixes, labels and class priors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedcue.model.prompted import Prefix


class FrozenValues(Protocol):
    """Gives, for rows of a set of images, what the frozen backbone computes without prompts."""

    def prefix(self, rows: Tensor, generator: torch.Generator | None = None) -> Prefix:
        """Return the prefix of the images at ``rows``, augmented if a generator is given."""

    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        """Return cls of the bare backbone at the blocks the method asked for: ``[B, L, d]``."""


@dataclass(frozen=True)
class Batch:
    """Some images on their way through a method: ``log_priors`` is ``[C]`` or ``[B, C]``."""

    rows: Tensor
    inputs: Prefix
    labels: Tensor
    log_priors: Tensor
    frozen: FrozenValues

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.rows)

    @property
    def bare_cls(self) -> Tensor:
        """The bare backbone's cls at the blocks the method asked for: ``[B, L, d]``."""
        return self.frozen.bare_cls(self.rows, self.inputs)


@dataclass(frozen=True)
class Samples:
    """The images of one client (or, in evaluation, of several: then priors are per image)."""

    frozen: FrozenValues
    labels: Tensor
    log_priors: Tensor
    check: Callable[[], None] = lambda: None
    """Called before every batch; raises to stop the work (an interrupt, a client's time limit)."""

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Yield batches in order or, with a generator, shuffled (the last one may be smaller)."""
        order = (
            torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        )
        for rows in order.split(size):
            self.check()
            priors = self.log_priors if self.log_priors.ndim == 1 else self.log_priors[rows]
            inputs = self.frozen.prefix(rows, generator)
            device = inputs.tokens.device
            yield Batch(rows, inputs, self.labels[rows].to(device), priors.to(device), self.frozen)
