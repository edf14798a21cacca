"""LoRA: low-rank changes of the query and value projections, averaged with the head (FFA-LoRA)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

import fedcue.methods as fm


class LoRA(fm.Method):
    """Low-rank changes ``(alpha / r) B A`` of query and value; A is drawn and frozen, B travels.

    With one A for all the mean of products is the product of means. ``train_a`` trains and sends A,
    too (FedLoRA), and then it is not.
    """

    name: ClassVar[str] = "lora"

    rank: int = fm.Field(default=8, ge=1, le=10_000, description="rank of a change (r)")
    alpha: float = fm.Field(default=16.0, gt=0, description="a change is scaled by alpha / rank")
    train_a: bool = fm.Field(default=False, description="train and send A, too (FedLoRA)")
    layers: fm.Blocks | None = fm.Field(default=None, description="blocks that change, from 0 (default: all)")

    def check(self, sizes: fm.Sizes) -> None:
        """Refuse changes beyond the last block, and ranks that are not low."""
        fm.check_layers(self.blocks(sizes), sizes)
        if self.rank > sizes.width:
            raise fm.ConfigError(
                f"method.rank={self.rank} is more than the backbone's width {sizes.width}. Give less."
            )

    def blocks(self, sizes: fm.Sizes) -> tuple[int, ...]:
        """Return the blocks that change."""
        return tuple(range(sizes.depth)) if self.layers is None else self.layers

    def first_block(self, sizes: fm.Sizes) -> int:
        """Return the first block that changes; everything before it is computed once."""
        return self.blocks(sizes)[0]

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head, B ``[blocks, 2, d, r]`` and A ``[blocks, 2, r, d]``: of query and of value."""
        changed = len(self.blocks(sizes))
        down, up = (changed, 2, self.rank, sizes.width), (changed, 2, sizes.width, self.rank)
        declare = fm.trained if self.train_a else fm.server
        return [
            *super().tensors(sizes),
            fm.trained("lora_b", up, fm.zeros),
            declare("lora_a", down, _first_a),
        ]

    def personal(self, client: fm.Client, sent: fm.Tensors) -> fm.Tensors:
        """Return what is sent and, if it is not, A: it follows from the seed."""
        return {"lora_a": client.first()["lora_a"], **sent} if not self.train_a else sent

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Change the query and value of each of the blocks."""
        down, up = tensors["lora_a"], tensors["lora_b"] * (self.alpha / self.rank)
        blocks = range(len(up)) if self.layers is None else self.layers
        places = {block: place for place, block in enumerate(blocks)}

        def change(block: int, tokens: Tensor) -> fm.LowRank | None:
            place = places.get(block)
            return None if place is None else fm.query_and_value(down[place], up[place])

        return change


def _first_a(shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw A ``[blocks, 2, r, d]`` from N(0, 1/r)."""
    return torch.randn(*shape, generator=fm.torch_rng(seed, "init", "lora_a")) / math.sqrt(shape[2])
