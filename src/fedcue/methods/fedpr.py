"""FedPR: shared prompts that move only in the null space of the prompts that were broadcast."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

from fedcue.errors import ConfigError
from fedcue.methods.base import PAPER, Method, Visit, initial_prompts
from fedcue.model.prompted import PromptedViT, Prompter
from fedcue.model.prompts import shallow
from fedcue.rng import torch_rng
from fedcue.train.local import StepFilter
from fedcue.train.samples import Batch
from fedcue.types import ClientMemory, Download, Setting, Tensors, Update


class FedPR(Method):
    """Prompts behind cls at block 0; the optimiser's change of them is projected, the head's is not.

    The projector is made from the broadcast prompts at every visit, the first one included: with
    partial participation one kept from an earlier visit would belong to other prompts.
    """

    name: ClassVar[str] = "fedpr"
    prompt_names: ClassVar[tuple[str, ...]] = ("shared_prompts",)
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": PAPER,
        "native": {
            **PAPER,
            "method.weighting": "size",
            "training.optimiser": "adam",
            "training.weight_decay": 0.0,
            "training.epochs": 10,
        },
    }

    prompts: int = Field(default=10, ge=1, le=10_000, description="number of shared prompts")
    prompt_init: Literal["vpt", "zeros"] = "vpt"
    ratio: float | None = Field(
        default=0.8, gt=0, le=1, description="share of directions kept (none: all but the prompts' own)"
    )
    normalise_projector: bool = Field(default=True, description="divide the projector by its Frobenius norm")

    def check(self, setting: Setting) -> None:
        """Refuse prompts that leave no direction to move in."""
        if self.prompts >= setting.width:
            raise ConfigError(
                f"method.prompts={self.prompts} may span all {setting.width} directions of the backbone, "
                "so that nothing could be trained. Give fewer prompts."
            )

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return the head and the prompts ``[n, d]``."""
        prompts = initial_prompts("shared_prompts", self.prompts, setting, seed, self.prompt_init)
        return {**super().initial(setting, seed), "shared_prompts": prompts}

    def update(self, visit: Visit, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train head and prompts, each step of the prompts projected."""
        loss = self.loss(visit.model, download.tensors)
        trained, value = visit.fit(loss, download.tensors, download.round, self.step_filter(download))
        return Update(visit.client, len(visit.samples), trained, value), memory

    def step_filter(self, download: Download) -> StepFilter:
        """Return the projection of the optimiser's changes, after momentum, clipping and decay."""
        prompts = download.tensors["shared_prompts"]
        width = prompts.shape[1]
        count = 0 if self.ratio is None else math.floor(width * (1 - self.ratio) + 1e-9)
        dropped = dropped_directions(prompts, count, torch_rng(download.seed, "fedpr"))
        scale = math.sqrt(width - dropped.shape[1]) if self.normalise_projector else 1.0

        def project(name: str, change: Tensor) -> Tensor:
            if name != "shared_prompts":
                return change
            exact = change.double()
            return ((exact - exact @ dropped @ dropped.T) / scale).to(change.dtype)

        return project

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Insert the prompts at block 0."""
        return shallow(tensors["shared_prompts"])


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
