"""One optimiser step at the server, of some rows of a tensor whose moments lie beside it by name."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedcue.registry import Options
from fedcue.types import Tensors


class Step(Options):
    """Which optimiser, how far, and how much the values decay."""

    optimiser: Literal["adamw", "sgd"]
    lr: float
    weight_decay: float

    def __call__(
        self, tensors: Tensors, name: str, gradient: Tensor, rows: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the tensor ``name`` and its moments after a step, of ``rows`` only if they are given.

        All other rows stay as they are, their moments included, as if each row were a parameter of
        its own that has a gradient only now and then.
        """
        names = (name, f"{name}_mean", f"{name}_square", f"{name}_steps")
        chosen = slice(None) if rows is None else rows
        value, mean, square, steps = (tensors[part][chosen] for part in names)
        value = value * (1 - self.lr * self.weight_decay)
        if self.optimiser == "sgd":
            value = value - self.lr * gradient
        else:
            mean, square, steps = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2, steps + 1
            taken = steps.double().view(-1, *[1] * (value.ndim - 1))
            size = (square / (1 - 0.999**taken)).sqrt() + 1e-8
            value = value - (self.lr * mean / (1 - 0.9**taken) / size).to(value.dtype)
        after = {part: tensors[part].clone() for part in names}
        for part, new in zip(names, (value, mean, square, steps), strict=True):
            after[part][chosen] = new
        return after


def moments(name: str, value: Tensor, rowwise: bool = False) -> dict[str, Tensor]:
    """Return the empty moments of the tensor ``name``; ``rowwise`` if its rows step one by one."""
    steps = torch.zeros(len(value) if rowwise else 1, dtype=torch.int64)
    return {
        f"{name}_mean": torch.zeros_like(value),
        f"{name}_square": torch.zeros_like(value),
        f"{name}_steps": steps,
    }
