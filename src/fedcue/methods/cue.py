"""Cue: the head starts as class prototypes, prompts are then tuned, priors make the decision personal.

All parameters are global. With the prior in the loss, too (``logit_prior=train+test``), the head's rows
of classes that a client does not hold neither move nor travel (``transport=sparse``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedcue.aggregate.mean import Combine, sum_updates
from fedcue.aggregate.prototypes import head_from_sums
from fedcue.methods.base import Method, Visit, check_blocks, initial_prompts
from fedcue.model.prompted import Insertion, PromptedViT, Prompter
from fedcue.model.vit import Architecture
from fedcue.train.samples import Batch
from fedcue.types import ClientMemory, Download, Kind, ServerState, Setting, Tensors, Update


class Cue(Method):
    """Prototypes for a head, shared prompts, log priors on the logits."""

    name: ClassVar[str] = "cue"
    prompt_names: ClassVar[tuple[str, ...]] = ("prompts",)
    class_rows: ClassVar[dict[str, int]] = {"head": 0, "head_bias": 0, "centroids": 1, "holds": 0}

    head_bias: bool = Field(default=True, description="centre the images too, not the prototypes alone")
    logit_prior: Literal["none", "test", "train+test"] = Field(
        default="test", description="add the log of the client's class prior to the logits"
    )
    prompts: int = Field(default=1, ge=1, description="number of prompts per block")
    blocks: int | None = Field(default=None, ge=1, description="first blocks with prompts (default: all)")
    head_init: Literal["prototypes", "random"] = "prototypes"
    scale: float = Field(default=10.0, gt=0, description="first logit of a class's own prototype")
    whiten: bool = Field(default=True, description="send second moments too: make directions comparable")

    def check(self, setting: Setting) -> None:
        """Refuse prompts for blocks the backbone does not have."""
        check_blocks(self.blocks, setting)

    def replied(self) -> tuple[str, ...]:
        """Return the class sums and counts and, if asked for, the second moments."""
        if self.head_init == "random":
            return ()
        return ("centroids", "holds", *("moments",) * self.whiten)

    def kinds(self) -> dict[str, Kind]:
        """Declare the centroids of the warm-up beside the trained tensors."""
        centroids: dict[str, Kind] = {"centroids": "class_sums", "holds": "class_counts"}
        return {**super().kinds(), **(centroids if self.replied() else {})}

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return the head and the prompts ``[blocks, n, d]``, as differences from the block's cls token."""
        return {**super().initial(setting, seed), "prompts": self.first_prompts(setting)}

    def first_prompts(self, sizes: Setting | Architecture) -> Tensor:
        """Return the first prompts: the same in every run, so that clients know them beforehand."""
        blocks = self.blocks or sizes.depth
        return initial_prompts("prompts", blocks * self.prompts, sizes, 0).view(blocks, self.prompts, -1)

    def warm_up(self, visit: Visit) -> Update | None:
        """Send what the head is made of, from the final cls tokens under the first prompts."""
        if not self.replied():
            return None
        tensors = {"prompts": self.first_prompts(visit.model.architecture).to(visit.model.device)}
        reply = visit.final_sums(lambda batch: self.prompter(visit.model, tensors, batch), self.whiten)
        return Update(visit.client, len(visit.samples), reply)

    def start(
        self, setting: Setting, seed: int, replies: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """Make the head of the class means of all clients' images."""
        tensors = self.initial(setting, seed)
        head = head_from_sums(combine(replies), self.scale, self.whiten) if self.replied() else {}
        return ServerState(0, {name: head.get(name, tensor) for name, tensor in tensors.items()})

    def update(self, visit: Visit, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train the prompts and the head: with the prior in the loss only rows of classes that have one.

        No other row has a gradient then; left out, it has no decay either.
        """
        if self.logit_prior != "train+test":
            return super().update(visit, download, memory)
        own = (visit.samples.log_priors > -torch.inf).nonzero()[:, 0].to(visit.model.device)
        sent, loss = download.tensors, self.loss(visit.model, download.tensors)
        rows = {name: axis for name, axis in self.class_rows.items() if name in self.shared()}

        def whole(trained: Tensors) -> dict[str, Tensor]:
            return {n: sent[n].index_copy(rows[n], own, t) if n in rows else t for n, t in trained.items()}

        start = {n: sent[n].index_select(rows[n], own) if n in rows else sent[n] for n in self.shared()}
        trained, value = visit.fit(lambda now, batch: loss(whole(now), batch), start, download.round)
        return Update(visit.client, len(visit.samples), whole(trained), value), memory

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Insert near copies of the cls token behind it: at first they hardly disturb the backbone."""
        prompts = tensors["prompts"]

        def insert(block: int, tokens: Tensor) -> Insertion | None:
            return Insertion(tokens[:, :1] + prompts[block], block > 0) if block < len(prompts) else None

        return insert
