"""FedPR: shared prompts that move only in the null space of the prompts that were broadcast."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

import fedcue.methods as fm


class FedPR(fm.Method):
    """Prompts behind cls at block 0; the optimiser's change of them is projected, the head's is not.

    The projector is made from the broadcast prompts at every visit: with partial participation one
    kept from an earlier visit would belong to other prompts.
    """

    name: ClassVar[str] = "fedpr"
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": fm.PAPER,
        "native": {
            **fm.STEADY,
            "method.weighting": "size",
            "method.prompt_init": "unit",
            "method.project_first_round": False,
            "method.keep_optimiser": True,
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
    project_first_round: bool = fm.Field(default=True, description="project in round 1, too")
    keep_optimiser: bool = fm.Field(
        default=False, description="a client's optimiser goes on at its next visit, and is not new"
    )

    def check(self, sizes: fm.Sizes) -> None:
        """Refuse prompts that leave no direction to move in."""
        if self.prompts >= sizes.width:
            raise fm.ConfigError(
                f"method.prompts={self.prompts} may span all {sizes.width} directions of the backbone, "
                "and nothing could be trained. Give fewer prompts."
            )

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head and the prompts ``[n, d]``, and what a client may keep of its optimiser."""
        shape = (self.prompts, sizes.width)
        trained = [*super().tensors(sizes), fm.prompt("shared_prompts", shape, sizes, self.prompt_init)]
        return [*trained, *(fm.kept_moments(trained) if self.keep_optimiser else [])]

    def update(self, client: fm.Client, sent: fm.Tensors) -> fm.Update:
        """Train head and prompts, each step of the prompts projected."""
        free = client.round == 0 and not self.project_first_round
        step_filter = None if free else self.step_filter(sent["shared_prompts"], client.seed)
        tensors = self.personal(client, sent)
        moments = {name: tensors[name] for name in client.table.kept}
        trained, loss = client.fit(self.loss(sent), sent, step_filter, moments or None)
        return client.update({**trained, **moments}, loss)

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
