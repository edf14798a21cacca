"""FedROD: a shared head trained as if all classes were equally frequent, a personal head on top of it."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

import fedcue.methods as fm
from fedcue.methods.optional_prompts import OptionalPrompts


class FedROD(OptionalPrompts):
    """Robust decoupling: balanced softmax for what is shared, the client's own head for what is its own.

    The personal head starts with zeros: a client that never trained decides with the shared head.
    """

    name: ClassVar[str] = "fedrod"

    prompts: int = fm.Field(
        default=0, ge=0, le=10_000, description="number of shared prompts; 0: the heads alone"
    )

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare what is shared and the personal head ``[C, d]``, with a bias if the shared one has one."""
        own = [fm.kept("personal_head", (sizes.classes, sizes.width), fm.zeros)]
        if self.head_bias:
            own.append(fm.kept("personal_head_bias", (sizes.classes,), fm.zeros))
        return [*super().tensors(sizes), *own]

    def logits(self, tensors: fm.Tensors, batch: fm.Batch) -> Tensor:
        """Return the sum of what both heads say, ``z_G + z_P``."""
        shared, personal = self.both(tensors, batch)
        return shared + personal

    def both(self, tensors: fm.Tensors, batch: fm.Batch) -> tuple[Tensor, Tensor]:
        """Return the logits of the shared and of the personal head; the latter moves nothing below it."""
        features = batch.features(self.prompter(tensors, batch)).squeeze(1)
        bias = tensors.get("personal_head_bias")
        return fm.classify(tensors, features), F.linear(features.detach(), tensors["personal_head"], bias)

    def loss(self, fixed: fm.Tensors) -> fm.Loss:
        """Return the sum of two losses that share no trained tensor: each head is trained by its own.

        Balanced softmax adds the log of the class counts to ``z_G``; that of a class without images is
        minus infinity, so that its row has no gradient.
        """

        def of_batch(trained: fm.Tensors, batch: fm.Batch) -> Tensor:
            shared, personal = self.both({**fixed, **trained}, batch)
            balanced = F.cross_entropy(shared + batch.log_priors, batch.labels)
            return balanced + self.cross_entropy(shared.detach() + personal, batch)

        return of_batch
