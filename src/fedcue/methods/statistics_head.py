"""Heads that follow from statistics of all clients' images, which are sent once, before round 0."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

import fedcue.methods as fm
from fedcue.aggregate.closed_form import (
    class_means,
    covariance,
    covariance_of_means,
    prototype_head,
    whitening,
)
from fedcue.types import Kind

WHITEN = "make directions comparable by the covariance within classes"
PARTS = (
    "class sums of so many random parts of a class's images: more to estimate a covariance from "
    "(privacy=dp: 1, since one image of another class deals the others out anew)"
)


def class_statistics(
    sizes: fm.Sizes,
    moments: bool = False,
    each: bool = False,
    parts: int = 1,
    dtype: torch.dtype = torch.float32,
) -> list[fm.TensorSpec]:
    """Declare class sums and counts and, if asked for, the lower half of the second moments.

    With ``each`` the server needs every client's sums and counts. Sums are by ``parts``, counts are not. With
    several parts one image of another class moves many others from part to part: no sensitivity is declared.
    """
    sums: Kind | None = "class_sums" if parts == 1 else None
    shape = (parts, sizes.classes, sizes.width)
    rows = [
        fm.reply("centroids", shape, sums, rows=1, dtype=dtype),
        fm.reply("holds", (sizes.classes,), "class_counts", rows=0, dtype=torch.int64),
    ]
    specs = [replace(spec, each=each) for spec in rows]
    if moments:
        half = sizes.width * (sizes.width + 1) // 2
        specs.append(fm.reply("moments", (half,), "moments", dtype=dtype))
    return specs


class StatisticsHead(fm.Method):
    """Base of methods whose first head follows from statistics of the final cls tokens."""

    under_dp: ClassVar[dict[str, Any]] = {"backbone.feature_norm": 1.0, "privacy.head_share": 0.9}
    """Clipped statistics need features of one length, and most of the budget (docs/decisions/0028)."""

    def replies(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare what clients send before round 0."""
        return class_statistics(sizes)

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head and what it is made of."""
        return [*super().tensors(sizes), *self.replies(sizes)]

    def vectors(self, tensors: fm.Tensors, batch: fm.Batch) -> Tensor:
        """Return what is described and classified of some images: their final cls tokens ``[B, d]``."""
        return batch.features(self.prompter(tensors, batch)).squeeze(1)

    def logits(self, tensors: fm.Tensors, batch: fm.Batch) -> Tensor:
        """Return the logits ``[B, C]`` of the vectors (``head_eq``), before any prior."""
        return fm.classify(tensors, self.vectors(tensors, batch))

    def warm_up(self, client: fm.Client) -> fm.Tensors:
        """Send what the head is made of, from the client's images under the first tensors."""
        if not client.table.replied:
            return {}
        tensors = self.personal(client, client.first())
        return client.statistics(lambda batch: self.vectors(tensors, batch))

    @abstractmethod
    def head(self, sums: fm.Sums) -> fm.Tensors:
        """Return the head and its bias, given the sums of the clients' statistics."""

    def start(self, sizes: fm.Sizes, seed: int, sums: fm.Sums) -> fm.ServerState:
        """Make the head of what all clients sent."""
        table = self.table(sizes)
        tensors = table.first(seed)
        if table.replied:
            tensors |= {name: value for name, value in self.head(sums).items() if name in tensors}
        return fm.ServerState(0, tensors)


class Untrained(StatisticsHead):
    """Base of methods that train nothing: a run has no rounds, whatever ``rounds`` says."""

    fixed: ClassVar[dict[str, Any]] = {"rounds": 0}

    def first_block(self, sizes: fm.Sizes) -> int:
        """Return the depth: no block sees a prompt, and the final feature is computed once."""
        return sizes.depth


class PrototypeHead(StatisticsHead):
    """Base of methods whose first head is made of class means, centred and of one length."""

    head_bias: bool = fm.Field(default=True, description="centre the images too, not the prototypes alone")
    scale: float = fm.Field(default=10.0, gt=0, description="first logit of a class's own prototype")
    whiten: bool = fm.Field(default=False, description=WHITEN)
    covariance: Literal["moments", "means"] = fm.Field(
        default="moments", description="from second moments, or from the clients' class means alone (FedCOF)"
    )

    def replies(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare class sums and counts and, for whitening by them, second moments."""
        from_means = self.covariance == "means"
        return class_statistics(sizes, self.whiten and not from_means, each=self.whiten and from_means)

    def head(self, sums: fm.Sums) -> fm.Tensors:
        """Return the head of all images' class means, after whitening if asked for."""
        means, counts = class_means(sums)
        transform = None
        if self.whiten and self.covariance == "means":
            transform = whitening(covariance_of_means(sums))
        elif self.whiten:
            noise = sums.deviations.get("moments", 0.0)
            transform = whitening(covariance(sums.total("moments"), means, counts, noise))
        return prototype_head(means, counts > 0, self.scale, transform)
