"""What tokens are inserted where: shallow and deep prompts."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedcue.model.prompted import Insertion, Prompter


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
