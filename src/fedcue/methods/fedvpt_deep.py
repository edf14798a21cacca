"""FedVPT-D: every block has shared prompts of its own (VPT-deep), averaged with the head."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedcue.methods.base import Method, check_blocks, initial_prompts
from fedcue.model.prompted import PromptedViT, Prompter
from fedcue.model.prompts import deep
from fedcue.train.samples import Batch
from fedcue.types import Setting, Tensors


class FedVPTDeep(Method):
    """Prompts ``[blocks, n, d]``: each block's own ones take the place of the previous block's."""

    name: ClassVar[str] = "fedvpt_deep"
    prompt_names: ClassVar[tuple[str, ...]] = ("deep_prompts",)

    prompts: int = Field(default=1, ge=1, le=10_000, description="number of prompts per block")
    blocks: int | None = Field(default=None, ge=1, description="first blocks with prompts (default: all)")
    prompt_init: Literal["vpt", "zeros"] = "vpt"

    def check(self, setting: Setting) -> None:
        """Refuse prompts for blocks the backbone does not have."""
        check_blocks(self.blocks, setting)

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return the head and the prompts ``[blocks, n, d]``."""
        blocks = self.blocks or setting.depth
        prompts = initial_prompts("deep_prompts", blocks * self.prompts, setting, seed, self.prompt_init)
        return {**super().initial(setting, seed), "deep_prompts": prompts.view(blocks, self.prompts, -1)}

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Give each block its prompts."""
        return deep(tensors["deep_prompts"])
