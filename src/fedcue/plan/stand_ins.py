"""A federation without images and weights: real clients and a real method on a model that counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from fedcue.clients.federation import Federation, describe, image_groups, split
from fedcue.clients.host import Host
from fedcue.config.settings import RunConfig
from fedcue.data.clients import ClientData
from fedcue.data.dataset import Computed
from fedcue.data.pixels import PixelStore
from fedcue.model.frozen_cache import Level, kept
from fedcue.model.prompted import Prefix, PromptedViT, no_prompts
from fedcue.model.shapes import shape_of
from fedcue.plan.counting_vit import Meter, Work, counting_vit
from fedcue.train.batches import Samples
from fedcue.train.settings import Training
from fedcue.train.sgd import Loss, Moments, StepFilter
from fedcue.types import Tensors

CHUNK = 8
"""Images per batch: enough to count one, small enough to need no memory."""


@dataclass(frozen=True)
class CountedImages:
    """Frozen values of imaginary images: zeros, computed at every use unless they are kept."""

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


@dataclass(frozen=True, eq=False)
class StandIn:
    """A federation whose frozen values, training and images are stand-ins that count."""

    federation: Federation
    frozen: CountedImages
    meter: Meter

    @property
    def host(self) -> Host:
        """Its clients."""
        return self.federation.host

    @cached_property
    def tested_sizes(self) -> NDArray[np.int64]:
        """Number of images each client is tested on."""
        if self.federation.config.evaluation.on == "test":
            return self.federation.roster.test_sizes
        return np.array([len(client.validation) for client in self.federation.clients])

    def class_count(self, client: int) -> int:
        """Return how many classes a client holds."""
        return int(np.count_nonzero(self.federation.clients[client].class_priors))


def stand_in(config: RunConfig) -> StandIn:
    """Return a federation as described, on a model that counts; a visit has one image of each class."""
    meter = Meter()
    evaluation = config.evaluation.model_copy(update={"chunk": CHUNK})
    config = config.model_copy(update={"evaluation": evaluation, "device": "cpu"})
    dataset = config.data.outline(config.seed)
    model = counting_vit(shape_of(config.backbone.name, config.backbone.image_size), meter)
    clients = split(config, dataset)
    roster = describe(config, dataset, model.architecture, clients)
    block, bare = config.method.first_block(roster.sizes), config.method.bare_blocks(roster.sizes)
    images = sum(map(len, image_groups(config, clients)))
    level, size = kept(
        model.architecture, config.precision, images, block, bare, config.cache.limit_mb * 2**20
    )
    frozen = CountedImages(model, meter, block, bare, level, size)
    few: Sequence[ClientData] = Computed(len(clients), lambda number: _one_of_each(clients[number]))
    host = Host(
        config, few, range(len(clients)), frozen, roster.sizes, roster.protection, CountedTraining(meter)
    )
    nothing = torch.empty(0, dtype=torch.int64)
    pixels = PixelStore(nothing, nothing, np.empty(0, dtype=np.int64))
    federation = Federation(config, dataset, clients, pixels, model, roster, host, level)
    return StandIn(federation, frozen, meter)


def _one_of_each(client: ClientData) -> ClientData:
    """Return the client with one training image of each class it holds, and its priors as they are."""
    labels, places = np.unique(client.train_labels, return_index=True)
    return replace(client, train=client.train[places], train_labels=labels)


@dataclass(frozen=True)
class CountedTraining:
    """Stands in for the training loop: one batch of the loss, counted for all epochs."""

    meter: Meter

    def __call__(
        self,
        loss: Loss,
        start: Tensors,
        samples: Samples,
        training: Training,
        finished_rounds: int,
        generator: Generator,
        step_filter: StepFilter | None = None,
        moments: Moments | None = None,
    ) -> tuple[dict[str, Tensor], float]:
        """Return the tensors as they are and count a training step."""
        trained = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        images = min(CHUNK, len(samples))
        with self.meter.share(self.meter.tally.training, training.epochs / images):
            loss(trained, next(samples.batches(CHUNK, generator)))
        return {name: tensor.detach() for name, tensor in trained.items()}, 0.0
