"""FedPR: shared prompts that move only in the null space of the prompts that were broadcast."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

import fedcue.methods as fm


class FedPR(fm.Method):
    """Prompts behind cls at block 0; the optimiser's change of them is projected, the head's is not.

    The projector is made from the broadcast prompts at every visit, the first one included: with
    partial participation one kept from an earlier visit would belong to other prompts.
    """

    name: ClassVar[str] = "fedpr"
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": fm.PAPER,
        "native": {
            **fm.PAPER,
            "method.weighting": "size",
            "training.optimiser": "adam",
            "training.weight_decay": 0.0,
            "training.epochs": 10,
        },
    }

    prompts: int = fm.Field(default=10, ge=1, le=10_000, description="number of shared prompts")
    prompt_init: fm.PromptInit = fm.Field(default="vpt", description="how prompts start")
    ratio: float | None = fm.Field(
        default=0.8, gt=0, le=1, description="share of directions kept (none: all but the prompts' own)"
    )
    normalise_projector: bool = fm.Field(default=True, description="divide the projector by its norm")

    def check(self, sizes: fm.Sizes) -> None:
        """Refuse prompts that leave no direction to move in."""
        if self.prompts >= sizes.width:
            raise fm.ConfigError(
                f"method.prompts={self.prompts} may span all {sizes.width} directions of the backbone, "
                "and nothing could be trained. Give fewer prompts."
            )

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head and the prompts ``[n, d]``."""
        shape = (self.prompts, sizes.width)
        return [*super().tensors(sizes), fm.prompt("shared_prompts", shape, sizes, self.prompt_init)]

    def update(self, client: fm.Client, sent: fm.Tensors) -> fm.Update:
        """Train head and prompts, each step of the prompts projected."""
        step_filter = self.step_filter(sent["shared_prompts"], client.seed)
        return client.update(*client.fit(self.loss(sent), sent, step_filter))

    def step_filter(self, prompts: Tensor, seed: int) -> fm.StepFilter:
        """Return the projection of the optimiser's changes, after momentum, clipping and decay."""
        width = prompts.shape[1]
        count = 0 if self.ratio is None else math.floor(width * (1 - self.ratio) + 1e-9)
        dropped = dropped_directions(prompts, count, fm.torch_rng(seed, "fedpr"))
        scale = math.sqrt(width - dropped.shape[1]) if self.normalise_projector else 1.0

        def project(name: str, change: Tensor) -> Tensor:
            if name != "shared_prompts":
                return change
            exact = change.double()
            return ((exact - exact @ dropped @ dropped.T) / scale).to(change.dtype)

        return project

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert the prompts at block 0."""
        return fm.shallow(tensors["shared_prompts"])


def dropped_directions(prompts: Tensor, count: int, generator: Generator) -> Tensor:
    """Return orthonormal directions ``[d, k]`` no change may have: the rows of ``prompts [n, d]``.

    If their space has fewer than ``count`` dimensions, random directions of the generator fill it
    up: the singular vectors beyond the rank, which the original drops, are not determined.
    """
    exact = prompts.double().cpu()
    _, sizes, rows = torch.linalg.svd(exact, full_matrices=False)
    tolerance = sizes.max() * max(exact.shape) * torch.finfo(torch.float32).eps
    rows = rows[sizes > tolerance]  # [rank, d]
    filling = torch.randn(count, exact.shape[1], generator=generator, dtype=torch.float64)
    filling = filling[: max(count - len(rows), 0)]
    basis: Tensor = torch.linalg.qr(torch.cat([rows, filling]).T).Q
    return basis.to(prompts.device)
