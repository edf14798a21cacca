"""A federation in outline: real clients and a real method, but no images and no weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcue.data.dataset import Dataset
from fedcue.data.store import PixelStore
from fedcue.federate.counting import Meter, Work, counting_vit
from fedcue.federate.federation import Federation
from fedcue.federate.site import Site
from fedcue.methods.base import Visit
from fedcue.model.frozen import Level, kept
from fedcue.model.prompted import Prefix, PromptedViT, no_prompts
from fedcue.model.shapes import shape_of
from fedcue.settings import RunConfig
from fedcue.train.local import Loss, StepFilter
from fedcue.types import Tensors

CHUNK = 8
"""Images per batch of the outline: enough to count one, small enough to need no memory."""


@dataclass(frozen=True)
class CountedImages:
    """Frozen values of images nobody looks at: zeros, computed at every use unless they are kept."""

    model: PromptedViT
    meter: Meter
    block: int
    bare_blocks: tuple[int, ...]
    level: Level
    bytes: int
    augmented: bool = False

    def view(
        self, images: NDArray[np.int64], augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    ) -> CountedImages:
        """Return the values of some images: all are alike."""
        return replace(self, augmented=augment is not None)

    def prefix(self, rows: Tensor, generator: torch.Generator | None = None) -> Prefix:
        """Return the prefix of the images at ``rows``, counted if it is computed anew."""
        if self.level == "nothing" or (self.augmented and generator is not None):
            return self.model.prefix(torch.zeros(len(rows), 3, 1, 1, dtype=torch.uint8), self.block)
        start, work = self._prefix_once()
        if self.block < self.model.depth:
            self.meter.add_formula(len(rows), work.formula_forward)
        return start[torch.zeros(len(rows), dtype=torch.int64)]

    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        """Return cls of the bare backbone: kept, so that only the asking is noted."""
        if self.augmented:
            return self.model.cls_tokens(inputs, no_prompts, self.bare_blocks)
        self.meter.tally.asks_bare = True
        return torch.zeros(len(rows), len(self.bare_blocks), self.model.architecture.width)

    def once(self) -> tuple[Work, Work]:
        """Return what the kept prefix and the bare values of an image take when they are computed."""
        start, prefix = self._prefix_once()
        bare = Work()
        if self.bare_blocks:
            with torch.no_grad(), self.meter.share(bare, 1.0):
                self.model.cls_tokens(start, no_prompts, self.bare_blocks)
        return (prefix, bare) if self.level != "nothing" else (Work(), prefix + bare)

    def _prefix_once(self) -> tuple[Prefix, Work]:
        work = Work()
        with self.meter.share(work, 1.0):
            start = self.model.prefix(torch.zeros(1, 3, 1, 1, dtype=torch.uint8), self.block)
        return (replace(start, qkv=None) if self.level == "tokens" else start), work


@dataclass(frozen=True)
class CountedVisit(Visit):
    """A visit whose training is one batch of each loss, counted for all epochs."""

    meter: Meter = field(default_factory=Meter)

    def fit(
        self, loss: Loss, start: Tensors, finished_rounds: int, step_filter: StepFilter | None = None
    ) -> tuple[dict[str, Tensor], float]:
        """Return the tensors as they are and count a training step."""
        trained = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        images = min(self.chunk, len(self.samples))
        with self.meter.share(self.meter.tally.training, self.training.epochs / images):
            loss(trained, next(self.samples.batches(self.chunk, self.generator)))
        return {name: tensor.detach() for name, tensor in trained.items()}, 0.0


class Counted(Site):
    """Clients without images: frozen values that are counted, visits of an image per class."""

    meter: Meter

    @cached_property
    def cache(self) -> Any:
        """The counted stand-in for the frozen backbone's values."""
        block, bare = self.method.first_block(self.setting), self.method.bare_blocks(self.setting)
        images = sum(map(len, self._groups()))
        limit = self.config.cache.limit_mb * 2**20
        level, size = kept(self.model.architecture, self.config.precision, images, block, bare, limit)
        return CountedImages(self.model, self.meter, block, bare, level, size)

    def _visit(self, *arguments: Any, **named: Any) -> Visit:
        """Return a visit with one image of each class the client holds."""
        visit = super()._visit(*arguments, **named)
        samples = replace(visit.samples, labels=visit.samples.labels.unique())
        return CountedVisit(**{**vars(visit), "samples": samples}, meter=self.meter)


class Outline(Counted, Federation):
    """A federation without images: data as described, a model that counts, visits of a few images."""

    def __init__(self, config: RunConfig) -> None:
        self.meter = Meter()
        evaluation = config.evaluation.model_copy(update={"chunk": CHUNK})
        super().__init__(config.model_copy(update={"evaluation": evaluation, "device": "cpu"}))

    def _load_dataset(self) -> Dataset:
        return self.config.data.outline(self.config.seed)  # type: ignore[no-any-return]

    def _load_model(self) -> PromptedViT:
        backbone = self.config.backbone
        return counting_vit(shape_of(backbone.name, backbone.image_size), self.meter)

    def _decode(self, dataset: Dataset, indices: NDArray[np.int64], size: int) -> PixelStore:
        return no_pixels()

    @cached_property
    def used(self) -> NDArray[np.int64]:
        """Every image that is read, once each."""
        return self._used(self.partition)

    @cached_property
    def tested_sizes(self) -> NDArray[np.int64]:
        """Number of images each client is tested on."""
        if self.config.evaluation.on == "test":
            return self.roster.test_sizes
        return np.array([len(client.validation) for client in self.clients])

    def class_count(self, client: int) -> int:
        """Return how many classes a client holds."""
        return int(np.count_nonzero(self.clients[client].class_priors))


def no_pixels() -> PixelStore:
    """Return a store without images."""
    nothing = torch.empty(0, dtype=torch.int64)
    return PixelStore(nothing, nothing, np.empty(0, dtype=np.int64))
