"""One client at work, as a method sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import torch
from torch import Generator, Tensor

from fedcue.aggregate.class_means import CentroidSums, MomentSums, Prototypes, dealt
from fedcue.train.batches import Batch, Samples
from fedcue.train.settings import Training
from fedcue.train.sgd import Fit, Loss, Moments, StepFilter, fit
from fedcue.types import Sizes, Tensors, TensorTable, Update, moved, put_rows, take_rows


@dataclass(frozen=True)
class Client:
    """A client during one visit or test: its images, its priors, how to train, its random stream."""

    id: int
    samples: Samples
    log_priors: Tensor
    """Log of its class priors: ``[C]``, or ``[B, C]`` where several clients are tested together."""
    table: TensorTable
    sizes: Sizes
    training: Training
    generator: Generator
    seed: int
    round: int = 0
    """Rounds finished so far."""
    memory: Tensors = field(default_factory=dict)
    """What it kept from its last visit."""
    chunk: int = 100
    class_sums: Callable[[int], CentroidSums] = CentroidSums
    hide_priors: bool = False
    """Whether class statistics must not depend on the client's priors, which every record shapes."""
    train: Fit = fit

    def described(self) -> Client:
        """Return the client as its class statistics may see it: under privacy without its priors."""
        if not self.hide_priors:
            return self
        even = torch.full_like(self.log_priors, -math.log(self.log_priors.shape[-1]))
        return replace(self, log_priors=even, samples=replace(self.samples, log_priors=even))

    def first_kept(self) -> dict[str, Tensor]:
        """Return what the client keeps before its first visit."""
        return moved(self.table.first_kept(self.seed), self.samples.frozen.model.device)

    def first(self) -> dict[str, Tensor]:
        """Return the tensors with which every client starts, as far as they follow from the seed."""
        return moved(self.table.first(self.seed), self.samples.frozen.model.device)

    @cached_property
    def held_classes(self) -> Tensor:
        """The classes that have a prior above zero."""
        held = (self.log_priors > -torch.inf).view(-1, self.log_priors.shape[-1]).any(0)
        return held.nonzero().flatten().to(self.samples.frozen.model.device)

    def own_rows(self, sent: Tensors) -> dict[str, Tensor]:
        """Return ``sent`` with the rows of the held classes only, and these ``classes``."""
        own = take_rows(sent, self.table.class_axes, self.held_classes)
        return {**own, "classes": self.held_classes}

    def all_rows(self, own: Tensors, sent: Tensors) -> dict[str, Tensor]:
        """Undo ``own_rows``: return the rows of all classes, those of other classes as they were sent."""
        return put_rows(own, self.table.class_axes, self.held_classes, sent)

    def fit(
        self,
        loss: Loss,
        start: Tensors,
        step_filter: StepFilter | None = None,
        moments: Moments | None = None,
    ) -> tuple[dict[str, Tensor], float]:
        """Train copies of ``start`` on the client's images; return them and the mean loss."""
        order = self.generator
        return self.train(loss, start, self.samples, self.training, self.round, order, step_filter, moments)

    def update(self, tensors: Tensors, loss: float | None = None) -> Update:
        """Return what is sent back of ``tensors`` and what the client keeps of them, by the table."""
        kept = {name: tensors[name] for name in self.table.kept}
        sent = {name: tensor for name, tensor in tensors.items() if name not in kept}
        return Update(self.id, len(self.samples), sent, loss, kept)

    def centroids(
        self, vectors: Callable[[Batch], Tensor], told: Prototypes | None = None
    ) -> dict[str, Tensor]:
        """Return the client's class means of ``vectors [B, L, d]`` and who holds them.

        This is ``eq:centroid_eq_client``. Class sums and counts are returned instead where the table
        declares numbers, not truth values, for who holds them.
        """
        sums = self.class_sums(self.sizes.classes)
        sums.told = told
        for found, batch in self._described(vectors):
            sums.add(found, batch.labels)
        by_count = self.table["holds"].dtype != torch.bool
        return sums.reply(by_count, self.table["centroids"].dtype)

    def statistics(self, vectors: Callable[[Batch], Tensor]) -> dict[str, Tensor]:
        """Return class sums and counts of ``vectors [B, d]`` and, if declared, their second moments.

        Sums are of as many random parts of the images as are declared.
        """
        sums, moments = self.class_sums(self.sizes.classes), MomentSums()
        parts = cast("int", self.table["centroids"].shape[0])
        part = dealt(self.samples.labels, parts, self.generator)
        for found, batch in self._described(vectors):
            own = torch.arange(parts) == part[batch.rows, None]  # [B, parts]
            sums.add(own[:, :, None].to(found) * found[:, None], batch.labels)
            if "moments" in self.table:
                moments.add(sums.shortened(found))
        reply = sums.reply(by_count=True, dtype=self.table["centroids"].dtype)
        if "moments" in self.table:
            reply["moments"] = moments.reply(sums.sent or self.table["moments"].dtype)
        return reply

    @torch.no_grad()
    def _described(self, vectors: Callable[[Batch], Tensor]) -> Iterator[tuple[Tensor, Batch]]:
        """Yield vectors of the client's images and the images themselves, batch by batch."""
        for batch in self.described().samples.batches(self.chunk):
            yield vectors(batch), batch
