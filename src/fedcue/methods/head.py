"""Head-Tuning: FedAvg of a linear head on the bare backbone's features."""

from __future__ import annotations

from typing import ClassVar

from fedcue.methods.base import Method
from fedcue.types import Setting


class HeadTuning(Method):
    """No prompts: each image passes the frozen backbone once, then only the head is trained."""

    name: ClassVar[str] = "head"

    def first_block(self, setting: Setting) -> int:
        """Return the depth: no block sees a prompt, so the final feature is computed once."""
        return setting.depth
