"""P-PT: prompts that never leave the client under a shared, averaged head."""

from __future__ import annotations

from typing import ClassVar

import fedcue.methods as fm


class PPT(fm.Method):
    """Private prompts at block 0, from one common initial value; only the head travels.

    A client that never trained, held-out or not yet sampled, predicts with the initial prompts.
    """

    name: ClassVar[str] = "ppt"

    prompts: int = fm.Field(default=1, ge=1, le=10_000, description="number of private prompts")
    prompt_init: fm.PromptInit = fm.Field(default="vpt", description="how prompts start")
    alternate: bool = fm.Field(default=False, description="train first the prompts, then the head")

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the shared head and the client's prompts ``[n, d]``."""
        start = fm.prompt_start("private_prompts", sizes, self.prompt_init)
        return [*super().tensors(sizes), fm.kept("private_prompts", (self.prompts, sizes.width), start)]

    def update(self, client: fm.Client, sent: fm.Tensors) -> fm.Update:
        """Train prompts and head together or, with ``alternate``, one after the other."""
        if not self.alternate:
            return super().update(client, sent)
        tensors = self.personal(client, sent)
        own, _ = client.fit(self.loss(sent), {name: tensors[name] for name in client.table.kept})
        head, loss = client.fit(self.loss(own), sent)
        return client.update({**head, **own}, loss)

    def trains_together(self) -> bool:
        """Say whether clients may train in one batch: not in two stages."""
        return not self.alternate

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert the client's prompts at block 0."""
        return fm.shallow(tensors["private_prompts"])
