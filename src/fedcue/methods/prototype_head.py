"""A head that starts as class means: clients send class sums once, before round 0."""

from __future__ import annotations

import torch

import fedcue.methods as fm
from fedcue.aggregate.class_means import head_from_sums


class PrototypeHead(fm.Method):
    """Base of methods whose first head is made of the clients' class means of the final cls token."""

    head_bias: bool = fm.Field(default=True, description="centre the images too, not the prototypes alone")
    scale: float = fm.Field(default=10.0, gt=0, description="first logit of a class's own prototype")
    whiten: bool = fm.Field(default=False, description="send second moments too: make directions comparable")

    def replies(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare class sums and counts and, if asked for, the lower half of the second moments."""
        specs = [
            fm.reply("centroids", (1, sizes.classes, sizes.width), "class_sums", rows=1),
            fm.reply("holds", (sizes.classes,), "class_counts", rows=0, dtype=torch.int64),
        ]
        if self.whiten:
            specs.append(fm.reply("moments", (sizes.width * (sizes.width + 1) // 2,), "moments"))
        return specs

    def warm_up(self, client: fm.Client) -> fm.Tensors:
        """Send what the head is made of, from the final cls tokens under the first prompts."""
        if not client.table.replied:
            return {}
        tensors = client.first()
        return client.final_sums(lambda batch: self.prompter(tensors, batch), self.whiten)

    def start(self, sizes: fm.Sizes, seed: int, sums: fm.Sums) -> fm.ServerState:
        """Make the head of the class means of all clients' images."""
        table = self.table(sizes)
        tensors = table.first(seed)
        if table.replied:
            head = head_from_sums(sums, self.scale, self.whiten)
            tensors |= {name: value for name, value in head.items() if name in tensors}
        return fm.ServerState(0, tensors)
