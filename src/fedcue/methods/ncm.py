"""NCM: no training at all; the head is the clients' class means of the final cls token."""

from __future__ import annotations

from typing import Any, ClassVar

import fedcue.methods as fm
from fedcue.methods.prototype_head import PrototypeHead


class NCM(PrototypeHead):
    """Nearest class mean: every client sends its class sums once, before round 0, and that is all.

    A run has no rounds, whatever ``rounds`` says.
    """

    name: ClassVar[str] = "ncm"
    fixed: ClassVar[dict[str, Any]] = {"rounds": 0}

    def first_block(self, sizes: fm.Sizes) -> int:
        """Return the depth: no block sees a prompt, and the final feature is computed once."""
        return sizes.depth

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head and what it is made of."""
        return [*super().tensors(sizes), *self.replies(sizes)]
