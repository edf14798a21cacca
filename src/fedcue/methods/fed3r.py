"""Fed3R: no training at all; the head is the ridge regression of all clients' labels on their features.

What clients send adds up: the head is that of all images in one place, however they are split.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

import fedcue.methods as fm
from fedcue.aggregate.closed_form import ridge_head
from fedcue.methods.statistics_head import Untrained, class_statistics


class Fed3R(Untrained):
    """Ridge regression in closed form: class sums and second moments are sent once, before round 0.

    The solution is as sensitive as the features are alike, so statistics travel in float64.
    """

    name: ClassVar[str] = "fed3r"

    head_bias: bool = fm.Field(default=True, description="append 1 to the features")
    ridge: float = fm.Field(default=0.01, gt=0, description="added to the diagonal (lambda)")
    features: Literal["cls", "random"] = fm.Field(
        default="cls", description="random: the positive part of a random projection of cls"
    )
    width: int = fm.Field(default=2000, ge=1, description="numbers of random features")

    def described(self, sizes: fm.Sizes) -> fm.Sizes:
        """Return the sizes with the number of features that are described and classified."""
        return replace(sizes, width=self.width) if self.features == "random" else sizes

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the head of the features and what it is made of."""
        return super().tensors(self.described(sizes))

    def replies(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare class sums, counts and second moments: ``B_k`` and half of ``A_k``.

        The row of ``A_k`` that the appended 1 makes is the sum of the rows of ``B_k``, and is not sent.
        """
        return class_statistics(sizes, moments=True, dtype=torch.float64)

    def personal(self, client: fm.Client, sent: fm.Tensors) -> fm.Tensors:
        """Add the projection, which follows from the seed and never travels."""
        tensors = super().personal(client, sent)
        if self.features == "cls":
            return tensors
        values = projection(client.sizes.width, self.width, client.seed)
        return {**tensors, "projection": values.to(client.samples.frozen.model.device)}

    def vectors(self, tensors: fm.Tensors, batch: fm.Batch) -> Tensor:
        """Return the features ``[B, d]`` or, if asked for, random ones ``[B, width]``."""
        cls = super().vectors(tensors, batch)
        return cls if self.features == "cls" else torch.relu(cls @ tensors["projection"].to(cls.dtype))

    def head(self, sums: fm.Sums) -> fm.Tensors:
        """Return ``W = (A + ridge I)^-1 B``, each class's weights of length 1."""
        return ridge_head(sums, self.ridge, self.head_bias)


def projection(width: int, features: int, seed: int) -> Tensor:
    """Draw the standard normal projection ``[width, features]`` of a run."""
    return torch.randn(width, features, generator=fm.torch_rng(seed, "projection"))
