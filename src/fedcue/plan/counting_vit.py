"""A backbone that only counts: a method's own code runs on it and its arithmetic is known.

Every block of the stand-in lets its tokens through and notes what the real block would have computed, so
that whatever a method does (two stages, extra passes, prompts that come and go) is counted as it is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedcue.model.prompted import PromptedViT
from fedcue.model.vit import Architecture, LowRank, VisionTransformer


@dataclass
class Work:
    """Multiply-adds per image, as this engine does them and as the literature counts them.

    The literature's formulas take every token through every block: nothing kept, nothing left out.
    """

    forward: float = 0.0
    backward: float = 0.0
    formula_forward: float = 0.0
    formula_backward: float = 0.0

    def __add__(self, other: Work) -> Work:
        """Return the sum of both."""
        return Work(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __mul__(self, factor: float) -> Work:
        """Return the work of so many images."""
        return Work(*(factor * value for value in vars(self).values()))

    @property
    def done(self) -> float:
        """Multiply-adds of this engine, both ways."""
        return self.forward + self.backward

    @property
    def formula(self) -> float:
        """Multiply-adds by the literature's formulas, both ways."""
        return self.formula_forward + self.formula_backward


@dataclass
class Tally:
    """What one step of a method came to: training batches apart from passes without training."""

    training: Work = field(default_factory=Work)
    passes: Work = field(default_factory=Work)
    asks_bare: bool = False
    """Whether the step asked for values of the bare backbone, which are computed once per image."""


class Meter:
    """Collects what the stand-in's parts compute; ``weight`` turns a batch into one image's share."""

    def __init__(self) -> None:
        self.tally, self.work, self.weight = Tally(), Work(), 1.0

    @contextmanager
    def reading(self, images: int) -> Iterator[Tally]:
        """Count what happens inside as passes over ``images`` images."""
        self.tally = Tally()
        with self.share(self.tally.passes, 1 / images):
            yield self.tally

    @contextmanager
    def share(self, work: Work, weight: float) -> Iterator[None]:
        """Count what happens inside into ``work``, each image with ``weight``."""
        before = self.work, self.weight
        self.work, self.weight = work, weight
        try:
            yield
        finally:
            self.work, self.weight = before

    def add(self, images: int, done: float, backward: float = 0.0) -> None:
        """Note multiply-adds per image that this engine does, and those of their gradients."""
        self.work.forward += self.weight * images * done
        self.work.backward += self.weight * images * backward

    def add_formula(self, images: int, forward: float, backward: float = 0.0) -> None:
        """Note multiply-adds per image by the literature's formulas."""
        self.work.formula_forward += self.weight * images * forward
        self.work.formula_backward += self.weight * images * backward


class _CountingBlock(nn.Module):
    """Stands in for a block: the tokens pass unchanged and are counted."""

    def __init__(self, architecture: Architecture, meter: Meter) -> None:
        super().__init__()
        self.width, self.hidden, self.meter = architecture.width, architecture.hidden, meter

    def project(self, x: Tensor, qkv: Tensor | None = None, change: LowRank | None = None) -> Tensor:
        """Count the query/key/value projection of tokens ``[B, T, d]`` and return them as they are.

        Prompts that are the same for all images come as ``[n, d]``; their share of an image is next to
        nothing and is left out.
        """
        if x.ndim == 3 and qkv is None:
            cost = 3.0 * x.shape[1] * self.width**2
            self.meter.add(len(x), cost, cost * x.requires_grad)
        return x if change is None else self._changed(x, change)

    def _changed(self, x: Tensor, change: LowRank) -> Tensor:
        """Count a low-rank change of the projection and return the tokens, which now have its gradient."""
        down, up = float(x.shape[1] * change.down.numel()), float(x.shape[1] * change.up.numel())
        through = x.requires_grad or change.down.requires_grad
        backward = up + through * up + (x.requires_grad + change.down.requires_grad) * down
        backward *= change.up.requires_grad or through
        self.meter.add(len(x), down + up, backward)
        self.meter.add_formula(len(x), down + up, backward)
        return x + 0 * change(x)[..., : self.width]

    def forward(self, x: Tensor, qkv: Tensor | None = None, read: int | None = None) -> Tensor:
        """Count attention and perceptron for the tokens that are read and let these through."""
        qkv = self.project(x) if qkv is None else qkv
        tokens, out = x.shape[1], qkv[:, :read]
        per_token = self.width**2 + 2.0 * self.width * self.hidden
        linear, attention = out.shape[1] * per_token, 2.0 * out.shape[1] * tokens * self.width
        trains = out.requires_grad
        self.meter.add(len(x), linear + attention, trains * (linear + 2 * attention))
        whole, square = tokens * (per_token + 3 * self.width**2), 2.0 * tokens**2 * self.width
        self.meter.add_formula(len(x), whole + square, trains * (whole + 2 * square))
        return out


class _CountingPatches(nn.Module):
    """Stands in for the patch embedding."""

    def __init__(self, architecture: Architecture, meter: Meter) -> None:
        super().__init__()
        self.architecture, self.meter = architecture, meter

    def forward(self, pixels: Tensor) -> Tensor:
        """Count the embedding of ``[B, 3, H, W]`` and return zeros ``[B, N, d]``."""
        shape = self.architecture
        cost = 3.0 * shape.patches * shape.patch**2 * shape.width
        self.meter.add(len(pixels), cost)
        self.meter.add_formula(len(pixels), cost)
        return torch.zeros(len(pixels), shape.patches, shape.width)


def counting_vit(architecture: Architecture, meter: Meter) -> PromptedViT:
    """Return a ViT without weights that has this architecture and counts."""
    backbone = VisionTransformer(replace(architecture, depth=0))
    backbone.architecture = architecture
    backbone.patch_embed = _CountingPatches(architecture, meter)  # type: ignore[assignment]
    backbone.blocks = nn.ModuleList(_CountingBlock(architecture, meter) for _ in range(architecture.depth))
    return PromptedViT(backbone.eval().requires_grad_(False))
