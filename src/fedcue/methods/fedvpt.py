"""FedVPT: shared prompts at the input of the ViT and a shared head, averaged (VPT-shallow)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedcue.methods.base import Method, initial_prompts
from fedcue.model.prompted import PromptedViT, Prompter
from fedcue.model.prompts import shallow
from fedcue.train.samples import Batch
from fedcue.types import Setting, Tensors


class FedVPT(Method):
    """Prompts behind cls at block 0, carried to the end and ignored by the head (eq. 1-2)."""

    name: ClassVar[str] = "fedvpt"
    prompt_names: ClassVar[tuple[str, ...]] = ("shared_prompts",)

    prompts: int = Field(default=1, ge=1, le=10_000, description="number of shared prompts")
    prompt_init: Literal["vpt", "zeros"] = "vpt"

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return the head and the prompts ``[n, d]``."""
        prompts = initial_prompts("shared_prompts", self.prompts, setting, seed, self.prompt_init)
        return {**super().initial(setting, seed), "shared_prompts": prompts}

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Insert the prompts at block 0."""
        return shallow(tensors["shared_prompts"])
