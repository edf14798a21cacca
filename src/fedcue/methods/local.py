"""Local: every client alone, without any communication; what a federation must beat."""

from __future__ import annotations

from typing import ClassVar

import fedcue.methods as fm
from fedcue.methods.optional_prompts import OptionalPrompts


class Local(OptionalPrompts):
    """Each client trains for itself at its visits what FedVPT trains; nothing is sent (a bound).

    The visits are those of every other method: as many steps as a client does in the federation. A
    client that no round drew trains once, before the last test and for it alone.
    """

    name: ClassVar[str] = "local"
    supports_heldout: ClassVar[bool] = False

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head and the prompts as the client's own."""
        return [fm.kept_as(spec) for spec in super().tensors(sizes)]

    def for_test(self, client: fm.Client, sent: fm.Tensors, final: bool) -> fm.Tensors:
        """Return what the client has trained; one that never did catches up on one visit."""
        tensors = self.personal(client, sent)
        if client.memory or not final:
            return tensors
        return client.fit(self.loss(tensors), tensors)[0]
