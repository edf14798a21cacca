"""A method of your own, in a file of your own: shared and private prompts side by side.

python examples/01_a_method_of_your_own.py
PYTHONPATH=examples fedcue run method=01_a_method_of_your_own:SideBySide method.prompts=2
"""

from __future__ import annotations

import sys
from typing import ClassVar

import torch

import fedcue
import fedcue.methods as fm


class SideBySide(fm.Method):
    """Shared prompts for what clients have in common, private ones for what they have not."""

    name: ClassVar[str] = "side_by_side"

    prompts: int = fm.Field(default=1, ge=1, description="number of prompts of each kind")

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head, the shared prompts and those that never leave their client."""
        shape = (self.prompts, sizes.width)
        return [
            *super().tensors(sizes),
            fm.prompt("shared_prompts", shape, sizes),
            fm.kept("private_prompts", shape, fm.prompt_start("private_prompts", sizes)),
        ]

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert both kinds behind cls at block 0."""
        return fm.shallow(torch.cat([tensors["shared_prompts"], tensors["private_prompts"]]))


if __name__ == "__main__":
    config = fedcue.configure("default", ["method=01_a_method_of_your_own:SideBySide", *sys.argv[1:]])
    result = fedcue.run(config)
    print(f"mean accuracy {result.mean_accuracy:.3f}, in {result.folder}")
