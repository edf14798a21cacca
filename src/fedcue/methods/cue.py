"""Cue: the head starts as class prototypes, prompts are then tuned, priors make the decision personal.

All parameters are global. With the prior in the loss, too (``logit_prior=train+test``), the head's rows
of classes that a client does not hold neither move nor travel (``transport=sparse``).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

import fedcue.methods as fm
from fedcue.methods.statistics_head import WHITEN, PrototypeHead


class Cue(PrototypeHead):
    """Prototypes for a head, shared prompts, log priors on the logits."""

    name: ClassVar[str] = "cue"

    logit_prior: fm.LogitPrior = fm.Field(default="test", description=fm.LOGIT_PRIOR)
    prompts: int = fm.Field(default=1, ge=1, description="number of prompts per block")
    blocks: int | None = fm.Field(default=None, ge=1, description="first blocks with prompts (default: all)")
    head_init: Literal["prototypes", "random"] = fm.Field(
        default="prototypes", description="how the head starts; random: no client is asked before round 0"
    )
    whiten: bool = fm.Field(default=True, description=WHITEN)

    def check(self, sizes: fm.Sizes) -> None:
        """Refuse prompts for blocks the backbone does not have."""
        fm.check_blocks(self.blocks, sizes)

    def needs_all_rows(self) -> str:
        """Name the setting under which every row of the head moves."""
        if self.logit_prior != "train+test":
            return f"method.logit_prior={self.logit_prior} (not train+test)"
        return super().needs_all_rows()

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head, the prompts ``[blocks, n, d]`` and what the head is made of.

        Prompts are differences from the block's cls token. They start the same in every run: clients
        know them beforehand.
        """
        shape = (self.blocks or sizes.depth, self.prompts, sizes.width)
        start = fm.prompt_start("prompts", sizes, seed=0)
        specs = [*fm.linear_head(sizes, self.head_bias, rows=0), fm.trained("prompts", shape, start)]
        return specs + self.replies(sizes) if self.head_init == "prototypes" else specs

    def update(self, client: fm.Client, sent: fm.Tensors) -> fm.Update:
        """Train the prompts and the head: with the prior in the loss only rows of classes that have one.

        No other row has a gradient then; left out, it has no decay either.
        """
        if self.logit_prior != "train+test":
            return super().update(client, sent)
        loss, own = self.loss(sent), client.own_rows(sent)
        start = {name: own[name] for name in client.table.trained}
        trained, value = client.fit(lambda now, batch: loss(client.all_rows(now, sent), batch), start)
        return client.update(client.all_rows(trained, sent), value)

    def trains_together(self) -> bool:
        """Say whether clients may train in one batch: not if each trains rows of its own."""
        return self.logit_prior != "train+test"

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert near copies of the cls token behind it: at first they hardly disturb the backbone."""
        prompts = tensors["prompts"]

        def insert(block: int, tokens: Tensor) -> fm.Insertion | None:
            if block >= len(prompts):
                return None
            return fm.Insertion(tokens[:, :1] + prompts[block], overwrite=block > 0)

        return insert
