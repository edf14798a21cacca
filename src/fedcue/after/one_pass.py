"""Images that pass the frozen backbone once: nothing is kept for later."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcue.model.prompted import Prefix, PromptedViT, no_prompts
from fedcue.train.batches import Batch


@dataclass(frozen=True)
class OnePass:
    """The frozen values of ``uint8`` images ``[n, 3, S, S]``, computed whenever they are asked for."""

    model: PromptedViT
    pixels: Tensor
    block: int
    bare_blocks: tuple[int, ...]

    def prefix(self, rows: Tensor, generator: torch.Generator | None = None) -> Prefix:
        """Return the prefix of the images at ``rows``."""
        return self.model.prefix(self.pixels[rows], self.block)

    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        """Return cls of the bare backbone at the blocks the method asked for: ``[B, L, d]``."""
        return self.model.cls_tokens(inputs, no_prompts, self.bare_blocks)

    def whole(self, log_priors: Tensor) -> Batch:
        """Return all images as one batch, in a way that can be traced with any number of them."""
        rows = torch.arange(self.pixels.shape[0])
        inputs = self.model.prefix(self.pixels, self.block)
        return Batch(rows, inputs, torch.zeros_like(rows), log_priors, self)
