"""P-PT: prompts that never leave the client under a shared, averaged head."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedcue.methods.base import Method, Visit, initial_prompts
from fedcue.model.prompted import PromptedViT, Prompter
from fedcue.model.prompts import shallow
from fedcue.train.samples import Batch
from fedcue.types import ClientMemory, Download, Tensors, Update


class PPT(Method):
    """Private prompts at block 0, from one common initial value; only the head travels.

    A client that never trained, held-out or not yet sampled, predicts with the initial prompts.
    """

    name: ClassVar[str] = "ppt"
    keeps_memory: ClassVar[bool] = True

    prompts: int = Field(default=1, ge=1, le=10_000, description="number of private prompts")
    prompt_init: Literal["vpt", "zeros"] = "vpt"
    alternate: bool = Field(default=False, description="train first the prompts alone, then the head alone")

    def private(self) -> tuple[str, ...]:
        """Return the name of the client's prompts."""
        return ("private_prompts",)

    def personalize(
        self, model: PromptedViT, download: Download, log_priors: Tensor, memory: ClientMemory
    ) -> Tensors:
        """Return the shared head and the client's prompts ``[n, d]``, at first those all start with."""
        sizes, seed = model.architecture, download.seed
        first = initial_prompts("private_prompts", self.prompts, sizes, seed, self.prompt_init)
        return {"private_prompts": first.to(model.device), **download.tensors, **memory.tensors}

    def update(self, visit: Visit, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train prompts and head together or, with ``alternate``, one after the other."""
        if not self.alternate:
            return super().update(visit, download, memory)
        tensors = self.personalize(visit.model, download, visit.samples.log_priors, memory)
        own = {name: tensors[name] for name in self.private()}
        own, _ = visit.fit(self.loss(visit.model, download.tensors), own, download.round)
        head, loss = visit.fit(self.loss(visit.model, own), download.tensors, download.round)
        return Update(visit.client, len(visit.samples), head, loss), ClientMemory(own)

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Insert the client's prompts at block 0."""
        return shallow(tensors["private_prompts"])
