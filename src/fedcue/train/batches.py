"""A set of images as a method sees it: batches that go through the frozen model, labels, class priors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedcue.model.prompted import Prefix, PromptedViT, Prompter


class FrozenValues(Protocol):
    """Gives, for rows of a set of images, what the frozen backbone computes without prompts."""

    @property
    def model(self) -> PromptedViT:
        """The frozen backbone."""

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

    def features(self, prompts: Prompter, read: int = 1) -> Tensor:
        """Return the first ``read`` final tokens, normalised: ``[B, read, d]``."""
        return self.frozen.model.features(self.inputs, prompts, read)

    def cls_tokens(self, prompts: Prompter, blocks: tuple[int, ...]) -> Tensor:
        """Return cls at the input of each of ``blocks`` (``depth``: the output): ``[B, len, d]``."""
        return self.frozen.model.cls_tokens(self.inputs, prompts, blocks)

    def for_all_classes(self, values: Tensor, classes: Tensor) -> Tensor:
        """Return values ``[..., k]`` of some classes as ``[..., C]``, zero for all others."""
        whole = values.new_zeros(*values.shape[:-1], self.log_priors.shape[-1])
        return whole.index_copy(-1, classes, values)

    def normalised(self, tokens: Tensor) -> Tensor:
        """Apply the backbone's final LayerNorm to tokens ``[..., d]``."""
        out: Tensor = self.frozen.model.backbone.norm(tokens)
        return out


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

    def order(self, generator: torch.Generator | None = None) -> Tensor:
        """Return the rows in order or, with a generator, shuffled."""
        return (
            torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        )

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Yield batches in order or, with a generator, shuffled (the last one may be smaller)."""
        for rows in self.order(generator).split(size):
            self.check()
            priors = self.log_priors if self.log_priors.ndim == 1 else self.log_priors[rows]
            inputs = self.frozen.prefix(rows, generator)
            device = inputs.tokens.device
            yield Batch(rows, inputs, self.labels[rows].to(device), priors.to(device), self.frozen)
