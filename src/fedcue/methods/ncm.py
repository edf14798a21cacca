"""NCM: no training at all; the head is the clients' class means of the final cls token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import Field

from fedcue.aggregate.mean import Combine, sum_updates
from fedcue.aggregate.prototypes import head_from_sums
from fedcue.methods.base import Method, Visit
from fedcue.model.prompted import no_prompts
from fedcue.types import Kind, ServerState, Setting, Update


class NCM(Method):
    """Nearest class mean: every client sends its class sums once, before round 0, and that is all.

    A run has no rounds, whatever ``rounds`` says. Who calls ``update`` all the same goes on with
    Head-Tuning from there.
    """

    name: ClassVar[str] = "ncm"
    fixed: ClassVar[dict[str, Any]] = {"rounds": 0}
    class_rows: ClassVar[dict[str, int]] = {"centroids": 1, "holds": 0}

    head_bias: bool = Field(default=True, description="centre the images too, not the prototypes alone")
    scale: float = Field(default=10.0, gt=0, description="logit of a class's own prototype")
    whiten: bool = Field(default=False, description="send second moments too: make directions comparable")

    def first_block(self, setting: Setting) -> int:
        """Return the depth: no block sees a prompt, so the final feature is computed once."""
        return setting.depth

    def replied(self) -> tuple[str, ...]:
        """Return the class sums and counts and, if asked for, the second moments."""
        return ("centroids", "holds", *("moments",) * self.whiten)

    def kinds(self) -> dict[str, Kind]:
        """Declare the class sums beside the head."""
        return {**super().kinds(), "centroids": "class_sums", "holds": "class_counts"}

    def warm_up(self, visit: Visit) -> Update | None:
        """Send sums and counts of the final cls tokens by class and, if asked for, second moments."""
        reply = visit.final_sums(lambda batch: no_prompts, self.whiten)
        return Update(visit.client, len(visit.samples), reply)

    def start(
        self, setting: Setting, seed: int, replies: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """Make the head of the class means of all clients' images."""
        sums, tensors = combine(replies), self.initial(setting, seed)
        head = head_from_sums(sums, self.scale, self.whiten)
        return ServerState(0, {name: head.get(name, tensor) for name, tensor in tensors.items()})
