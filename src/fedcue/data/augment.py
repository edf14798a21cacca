"""Training images varied a little at every visit."""

from __future__ import annotations

import torch
from torch import Tensor


def flip_and_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to an eighth of its size (mirrored at the edge) and flip half of them.

    Works on uint8 ``[B, 3, S, S]``; every image has its own shift and flip.
    """
    batch, channels, height, width = images.shape
    rows = _shifted(batch, height, generator)
    columns = _shifted(batch, width, generator)
    flip = torch.rand((batch, 1), generator=generator) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    number = torch.arange(batch)[:, None, None, None]
    channel = torch.arange(channels)[None, :, None, None]
    return images[number, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _shifted(batch: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw ``[B, size]`` source positions: a window of a line that is reflected at both ends."""
    margin = size // 8
    shift = torch.randint(-margin, margin + 1, (batch, 1), generator=generator)
    position = (torch.arange(size) + shift).abs()
    return torch.where(position < size, position, 2 * (size - 1) - position)
