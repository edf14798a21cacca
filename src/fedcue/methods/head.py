"""Head-Tuning: FedAvg of a linear head on the bare backbone's features."""

from __future__ import annotations

from typing import ClassVar

import fedcue.methods as fm


class HeadTuning(fm.Method):
    """No prompts: each image passes the frozen backbone once, then only the head is trained."""

    name: ClassVar[str] = "head"

    def first_block(self, sizes: fm.Sizes) -> int:
        """Return the depth: no block sees a prompt, and the final feature is computed once."""
        return sizes.depth
