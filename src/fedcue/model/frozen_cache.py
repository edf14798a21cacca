"""What the frozen backbone computes without prompts, kept once per image in shared memory.

Entries belong to images, which come in groups (one client's training or test images; where clients
share images, fixed pieces of all of them). A group is computed as a whole, in chunks of fixed size,
so that the bits of an entry never depend on who asks first, on memory or on the number of worker
processes. Whether values are kept follows from the configuration and the number of images alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcue.machine import shared_zeros
from fedcue.model.prompted import PRODUCTS, Precision, Prefix, PromptedViT, no_prompts
from fedcue.model.vit import Architecture

CHUNK = 64

Pixels = Callable[[NDArray[np.int64]], Tensor]
"""From image indices to ``uint8`` images ``[n, 3, S, S]``."""

Level = Literal["projected", "tokens", "nothing"]
"""What is kept of an image: tokens and their projection, tokens alone, or nothing."""


def kept(
    shape: Architecture,
    precision: Precision,
    images: int,
    block: int,
    bare_blocks: tuple[int, ...],
    limit_bytes: int,
) -> tuple[Level, int]:
    """Return what is kept of so many images within the limit, and how many bytes all of it takes."""
    value = images * shape.width * 4
    bare = value * len(bare_blocks)
    tokens = value if block == shape.depth else value * shape.tokens
    whole = tokens if block == shape.depth else tokens + 3 * tokens * PRODUCTS[precision].itemsize // 4
    if whole + bare <= limit_bytes:
        return "projected", whole + bare
    return ("tokens", tokens + bare) if tokens + bare <= limit_bytes else ("nothing", bare)


class FrozenCache:
    """Per-image values of the frozen backbone for groups of images."""

    def __init__(
        self,
        model: PromptedViT,
        pixels: Pixels,
        groups: Sequence[NDArray[np.int64]],
        block: int,
        bare_blocks: tuple[int, ...],
        limit_bytes: int,
        folder: Path | None = None,
    ) -> None:
        self.model, self.pixels, self.block, self.bare_blocks = model, pixels, block, bare_blocks
        self.images = np.concatenate(groups)
        self.bounds = np.cumsum([0, *map(len, groups)])
        self._slots = np.full(self.images.max(initial=-1) + 1, -1)  # of each image
        self._slots[self.images] = np.arange(len(self.images))
        self.level = kept(
            model.architecture, model.precision, len(self.images), block, bare_blocks, limit_bytes
        )[0]
        self._folder = folder
        self._prefix_filled = shared_zeros([len(groups)], torch.bool).numpy()
        self._bare_filled = shared_zeros([len(groups)], torch.bool).numpy()
        tokens = 1 if block == model.depth else model.architecture.tokens
        projected = self.level == "projected" and block < model.depth
        self._tokens = self._buffer(tokens if self.level != "nothing" else 0)
        self._qkv = self._buffer(tokens if projected else 0, 3, model.dtype)
        self._bare = self._buffer(len(bare_blocks))

    def _buffer(self, tokens: int, factor: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
        size = (len(self.images), tokens, factor * self.model.architecture.width)
        return shared_zeros(size, dtype, self._folder)

    def view(
        self, images: NDArray[np.int64], augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    ) -> FrozenView:
        """Return the values of some images, in the order given, as one set."""
        return FrozenView(self, torch.from_numpy(self._slots[images]), augment)

    def compute(self, slots: Tensor, augment: Callable[[Tensor], Tensor] | None = None) -> Prefix:
        """Compute the prefix of images from their pixels."""
        images = self.pixels(self.images[slots.numpy()])
        return self.model.prefix(images if augment is None else augment(images), self.block)

    def prefix(self, slots: Tensor) -> Prefix:
        """Return the kept prefix of images, filling their groups if need be."""
        self._fill(slots, self._prefix_filled, self._fill_prefix)
        device = self.model.device
        qkv = self._qkv[slots].to(device) if self._qkv.shape[1] else None
        return Prefix(self.block, self._tokens[slots].to(device), qkv)

    def bare(self, slots: Tensor) -> Tensor:
        """Return the kept cls tokens of the bare backbone ``[B, L, d]``."""
        self._fill(slots, self._bare_filled, self._fill_bare)
        return self._bare[slots].to(self.model.device)

    def _fill(self, slots: Tensor, filled: NDArray[np.bool_], fill: Callable[[Tensor], None]) -> None:
        for group in np.unique(np.searchsorted(self.bounds, slots.numpy(), side="right") - 1):
            if not filled[group]:
                whole = torch.arange(self.bounds[group], self.bounds[group + 1])
                for chunk in whole.split(CHUNK):
                    fill(chunk)
                filled[group] = True

    def _fill_prefix(self, slots: Tensor) -> None:
        prefix = self.compute(slots)
        self._tokens[slots] = prefix.tokens.cpu()
        if self._qkv.shape[1] and prefix.qkv is not None:
            self._qkv[slots] = prefix.qkv.cpu()

    @torch.no_grad()
    def _fill_bare(self, slots: Tensor) -> None:
        prefix = self.compute(slots) if self.level == "nothing" else self.prefix(slots)
        self._bare[slots] = self.model.cls_tokens(prefix, no_prompts, self.bare_blocks).cpu()


@dataclass(frozen=True)
class FrozenView:
    """The frozen values of one set of images; with ``augment`` nothing kept is used in training."""

    cache: FrozenCache
    slots: Tensor
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None

    @property
    def model(self) -> PromptedViT:
        """The frozen backbone."""
        return self.cache.model

    def prefix(self, rows: Tensor, generator: torch.Generator | None = None) -> Prefix:
        """Return the prefix of the images at ``rows``, augmented if a generator is given."""
        augment = self.augment
        if augment is not None and generator is not None:
            return self.cache.compute(self.slots[rows], lambda images: augment(images, generator))
        if self.cache.level == "nothing":
            return self.cache.compute(self.slots[rows])
        return self.cache.prefix(self.slots[rows])

    @torch.no_grad()
    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        """Return cls of the bare backbone at the blocks the method asked for: ``[B, L, d]``."""
        if self.augment is not None:
            return self.cache.model.cls_tokens(inputs, no_prompts, self.cache.bare_blocks)
        return self.cache.bare(self.slots[rows])
