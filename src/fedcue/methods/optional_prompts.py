"""A linear head and, where they are asked for, FedVPT's prompts below it."""

from __future__ import annotations

import fedcue.methods as fm


class OptionalPrompts(fm.Method):
    """Base of methods that train a head alone or FedVPT's prompts and head: they differ in who shares."""

    prompts: int = fm.Field(default=1, ge=0, le=10_000, description="number of prompts; 0: the head alone")
    prompt_init: fm.PromptInit = fm.Field(default="vpt", description="how prompts start")

    def first_block(self, sizes: fm.Sizes) -> int:
        """Return block 0, or the depth if no block sees a prompt."""
        return 0 if self.prompts else sizes.depth

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head and, if there are any, the prompts ``[n, d]``."""
        if not self.prompts:
            return super().tensors(sizes)
        shape = (self.prompts, sizes.width)
        return [*super().tensors(sizes), fm.prompt("prompts", shape, sizes, self.prompt_init)]

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert the prompts at block 0."""
        return fm.shallow(tensors["prompts"]) if self.prompts else fm.no_prompts
