"""FedVPT-D: every block has shared prompts of its own (VPT-deep), averaged with the head."""

from __future__ import annotations

from typing import ClassVar

import fedcue.methods as fm


class FedVPTDeep(fm.Method):
    """Prompts ``[blocks, n, d]``: each block's own ones take the place of the previous block's."""

    name: ClassVar[str] = "fedvpt_deep"

    prompts: int = fm.Field(default=1, ge=1, le=10_000, description="number of prompts per block")
    blocks: int | None = fm.Field(default=None, ge=1, description="first blocks with prompts (default: all)")
    prompt_init: fm.PromptInit = fm.Field(default="vpt", description="how prompts start")

    def check(self, sizes: fm.Sizes) -> None:
        """Refuse prompts for blocks the backbone does not have."""
        fm.check_blocks(self.blocks, sizes)

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head and the prompts ``[blocks, n, d]``."""
        shape = (self.blocks or sizes.depth, self.prompts, sizes.width)
        return [*super().tensors(sizes), fm.prompt("deep_prompts", shape, sizes, self.prompt_init)]

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Give each block its prompts."""
        return fm.deep(tensors["deep_prompts"])
