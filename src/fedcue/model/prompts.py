"""What tokens are inserted where, shallow or deep, and low-rank changes of a block."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedcue.model.prompted import Insertion, Prompter
from fedcue.model.vit import LowRank


def inserted(prompts: Mapping[int, Tensor]) -> Prompter:
    """Insert ``[n, d]`` or ``[B, n, d]`` behind cls at some blocks; they accumulate and flow on."""

    def insert(block: int, tokens: Tensor) -> Insertion | None:
        return Insertion(prompts[block]) if block in prompts else None

    return insert


def shallow(prompts: Tensor) -> Prompter:
    """Insert prompts ``[n, d]`` behind cls at block 0; they flow to the end (VPT-shallow)."""
    return inserted({0: prompts})


def deep(prompts: Tensor) -> Prompter:
    """Give each of the first blocks its own prompts ``[blocks, n, d]``, overwriting (VPT-deep)."""

    def insert(block: int, tokens: Tensor) -> Insertion | None:
        return Insertion(prompts[block], overwrite=block > 0) if block < len(prompts) else None

    return insert


def query_and_value(down: Tensor, up: Tensor) -> LowRank:
    """Change a block's query by ``up[0] @ down[0]`` and its value by ``up[1] @ down[1]``, not its key.

    ``down [2, r, d], up [2, d, r]``.
    """
    nothing = torch.zeros_like(up[0])
    query, key, value = ((up[0], nothing), (nothing, nothing), (nothing, up[1]))
    return LowRank(down.flatten(0, 1), torch.cat([torch.cat(rows, 1) for rows in (query, key, value)]))
