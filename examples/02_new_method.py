"""A method of your own, in a file of your own: shared and private prompts side by side.

python examples/02_new_method.py
PYTHONPATH=examples fedcue run method=02_new_method:SideBySide method.prompts=2
"""

from __future__ import annotations

import sys
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

import fedcue
from fedcue.methods.base import Method, initial_prompts
from fedcue.model.prompted import PromptedViT, Prompter
from fedcue.model.prompts import shallow
from fedcue.train.batches import Batch
from fedcue.types import ClientMemory, Download, Sizes, Tensors


class SideBySide(Method):
    """Shared prompts for what clients have in common, private ones for what they have not."""

    name: ClassVar[str] = "side_by_side"
    prompt_names: ClassVar[tuple[str, ...]] = ("shared_prompts",)
    keeps_memory: ClassVar[bool] = True

    prompts: int = Field(default=1, ge=1, description="number of prompts of each kind")

    def private(self) -> tuple[str, ...]:
        """Return the names of what a client trains, keeps and never sends."""
        return ("private_prompts",)

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return the head and the shared prompts before round 0."""
        prompts = initial_prompts("shared_prompts", self.prompts, setting, seed)
        return {**super().initial(setting, seed), "shared_prompts": prompts}

    def personalize(
        self, model: PromptedViT, download: Download, log_priors: Tensor, memory: ClientMemory
    ) -> Tensors:
        """Return what was sent and the client's own prompts, at first those all start with."""
        first = initial_prompts("private_prompts", self.prompts, model.architecture, download.seed)
        return {"private_prompts": first.to(model.device), **download.tensors, **memory.tensors}

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Insert both kinds at block 0."""
        return shallow(torch.cat([tensors["shared_prompts"], tensors["private_prompts"]]))


if __name__ == "__main__":
    config = fedcue.configure("default", ["method=02_new_method:SideBySide", *sys.argv[1:]])
    result = fedcue.run(config)
    print(f"mean accuracy {result.mean_accuracy:.3f}, in {result.folder}")
