"""What tokens are inserted where: shallow and deep prompts, and class scores for mixed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
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


def mixed(
    first: Prompter, blocks: tuple[int, ...], mix: Callable[[int, Tensor], Tensor], replace: bool
) -> Prompter:
    """Put ``mix(position in blocks, cls)`` ``[B, d]`` behind cls at each of ``blocks``.

    ``replace`` keeps one slot that later blocks overwrite; otherwise the tokens accumulate. At
    block 0 the mixed prompt joins what ``first`` inserts there.
    """

    def insert(block: int, tokens: Tensor) -> Insertion | None:
        base = first(block, tokens)
        if block not in blocks:
            return base
        position = blocks.index(block)
        token = mix(position, tokens[:, 0])[:, None]  # [B, 1, d]
        if base is not None:
            token = torch.cat([token, base.tokens.expand(len(token), -1, -1)], 1)
        return Insertion(token, overwrite=replace and position > 0)

    return insert


def class_scores(
    cls: Tensor,
    prototypes: Tensor,
    known: Tensor,
    log_priors: Tensor,
    temperature: float,
    neutral: bool = True,
) -> Tensor:
    """Return each image's class membership scores (``exp_similarity``, ``final_mixing``).

    ``cls [B, d], prototypes [C, d], known [C], log_priors [C] or [B, C] -> [B, C]``. A class that
    has no prototype yet takes the mean similarity of the client's classes that have one
    (``neutral``), or 0. In log space and at least float32: finite for any temperature.
    """
    precise = torch.promote_types(cls.dtype, torch.float32)
    cls, prototypes = F.normalize(cls.to(precise), dim=-1), F.normalize(prototypes.to(precise), dim=-1)
    similarity = cls @ prototypes.T  # [B, C]
    owned = (known & (log_priors > -torch.inf)).to(precise).expand_as(similarity)
    average = (similarity * owned).sum(-1, keepdim=True) / owned.sum(-1, keepdim=True).clamp(min=1)
    similarity = torch.where(known, similarity, average if neutral else torch.zeros_like(average))
    return torch.softmax(similarity / temperature + log_priors, -1)
