"""FedVPT: shared prompts at the input of the ViT and a shared head, averaged (VPT-shallow)."""

from __future__ import annotations

from typing import ClassVar

import fedcue.methods as fm


class FedVPT(fm.Method):
    """Prompts behind cls at block 0, carried to the end and ignored by the head (eq. 1-2)."""

    name: ClassVar[str] = "fedvpt"

    prompts: int = fm.Field(default=1, ge=1, le=10_000, description="number of shared prompts")
    prompt_init: fm.PromptInit = fm.Field(default="vpt", description="how prompts start")

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head and the prompts P ``[n, d]``."""
        shape = (self.prompts, sizes.width)
        return [*super().tensors(sizes), fm.prompt("shared_prompts", shape, sizes, self.prompt_init)]

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert the prompts at block 0."""
        return fm.shallow(tensors["shared_prompts"])
