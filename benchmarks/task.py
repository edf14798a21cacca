"""The job all contenders do: the same clients, images, first values, batches and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedcue
from fedcue.data.clients import make_clients
from fedcue.data.pixels import decode_images
from fedcue.model.backbone import load_backbone
from fedcue.model.vit import VisionTransformer
from fedcue.privacy.budget import Schedule
from fedcue.rng import rng, torch_rng
from fedcue.types import Sizes

Parameters = dict[str, Tensor]
PROMPTS, DEEP, CLASSES = "shared_prompts", "deep_prompts", "class_prompts"


@dataclass(frozen=True)
class Mixing:
    """What PEP-FedPT mixes its class prompts by at one client."""

    layers: tuple[int, ...]
    temperature: float
    prototypes: Tensor  # [L, C, d]
    log_priors: Tensor  # [C]

    def prompt(self, position: int, cls: Tensor, class_prompts: Tensor) -> Tensor:
        """Return every image's mixed prompt ``[B, 1, d]``."""
        similarity = nn.functional.normalize(cls, dim=-1) @ self._directions(position).T
        scores = torch.softmax(similarity / self.temperature + self.log_priors, -1)
        return (scores @ class_prompts)[:, None]

    def _directions(self, position: int) -> Tensor:
        return nn.functional.normalize(self.prototypes[position], dim=-1)


class Task:
    """What follows from a configuration; images are decoded when a contender asks for them."""

    def __init__(self, config: fedcue.RunConfig) -> None:
        self.config = config
        self.dataset = config.data.load(config.seed)
        partition = config.partition.split(self.dataset, rng(config.seed, "partition"))
        self.clients = make_clients(self.dataset, partition, heldout=config.heldout, seed=config.seed)
        training = np.delete(np.arange(len(self.clients)), self.clients.heldout)
        self.schedule = Schedule(
            training, config.clients_per_round, config.rounds, config.warm_start, config.seed
        )
        self.backbone: VisionTransformer = load_backbone(config.backbone.name, config.backbone.image_size)
        self.shape = self.backbone.architecture
        shape = (self.shape.width, self.shape.depth, self.shape.patch)
        self.sizes = Sizes(len(self.dataset.classes), *shape, len(self.clients))
        table = config.method.table(self.sizes)
        self.start: Parameters = {name: table.first(config.seed)[name] for name in table.trained}
        classes, layers = self.sizes.classes, getattr(config.method, "layers", ())
        generator = torch_rng(config.seed, "prototypes")
        self.prototypes = torch.randn(len(layers), classes, self.sizes.width, generator=generator)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def sampled(self, round_: int) -> list[int]:
        """Return the clients of a round."""
        return self.schedule.drawn(round_)

    def orders(self, client: int, round_: int) -> list[Tensor]:
        """Return the order of a client's images in each epoch, as fedcue draws it."""
        generator = torch_rng(self.config.seed, "client", client, round_)
        count = len(self.clients[client].train)
        return [torch.randperm(count, generator=generator) for _ in range(self.config.training.epochs)]

    def images(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's normalised pixels and labels: decoded once, then kept."""
        if client not in self._kept:
            own = self.clients[client]
            pixels = decode_images(self.dataset, own.train, self.shape.image_size, self.config.data)
            normalised = self.backbone.normalise(pixels[own.train])
            self._kept[client] = normalised, torch.from_numpy(own.train_labels)
        return self._kept[client]

    def optimiser(self, parameters: Mapping[str, Tensor], round_: int) -> torch.optim.SGD:
        """Return the optimiser of a visit."""
        training, decay = self.config.training, self.config.training.lr_decay**round_
        given = {name: training.head_lr if name == "head" else training.prompt_lr for name in parameters}
        rates = {name: training.lr if rate is None else rate for name, rate in given.items()}
        groups = [{"params": [tensor], "lr": rates[name] * decay} for name, tensor in parameters.items()]
        return torch.optim.SGD(groups, momentum=training.momentum, weight_decay=training.weight_decay)

    def step(self, optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        """Take one clipped step."""
        optimiser.zero_grad()
        loss.backward()
        tensors = [tensor for group in optimiser.param_groups for tensor in group["params"]]
        if self.config.training.clip_norm is not None:
            nn.utils.clip_grad_norm_(tensors, self.config.training.clip_norm)
        optimiser.step()

    def tuned_visit(self, client: int, round_: int, values: Parameters) -> Parameters:
        """Train one client with the plain blocks for all tokens, on pixels kept in memory."""
        own = {name: tensor.clone().requires_grad_() for name, tensor in values.items()}
        optimiser = self.optimiser(own, round_)
        images, labels = self.images(client)
        mixing = self.mixing(client)
        self.describe(lambda: plain_logits(self.backbone, values, images, mixing))
        for order in self.orders(client, round_):
            for rows in order.split(self.config.training.batch_size):
                with self.autocast():
                    logits = plain_logits(self.backbone, own, images[rows], mixing)
                self.step(optimiser, nn.functional.cross_entropy(logits.float(), labels[rows]))
        return {name: tensor.detach() for name, tensor in own.items()}

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the precision that was asked for."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.config.precision == "bfloat16")

    def mixing(self, client: int) -> Mixing | None:
        """Return what a client's prompts are mixed by, if the method mixes any."""
        if CLASSES not in self.start:
            return None
        method: Any = self.config.method
        priors = torch.from_numpy(self.clients[client].class_priors).float()
        return Mixing(method.layers, method.temperature, self.prototypes, priors.log())

    def describe(self, logits: Callable[[], Tensor]) -> None:
        """Pass all of a client's images once before training, as PEP-FedPT's centroids need it."""
        if CLASSES in self.start:
            with torch.no_grad(), self.autocast():
                logits()


def plain_logits(
    vit: VisionTransformer, values: Parameters, images: Tensor, mixing: Mixing | None = None
) -> Tensor:
    """Run every block for every token."""
    features: Tensor = vit.norm(prompted(vit.blocks, values, vit.embed(images), mixing))[:, 0]
    return features @ values["head"].T


def prompted(blocks: Iterable[Any], values: Parameters, x: Tensor, mixing: Mixing | None = None) -> Tensor:
    """Run blocks with whatever prompts there are."""
    if PROMPTS in values:
        x = torch.cat([x[:, :1], values[PROMPTS].expand(len(x), -1, -1), x[:, 1:]], 1)
    for index, block in enumerate(blocks):
        if DEEP in values:
            own = values[DEEP][index].expand(len(x), -1, -1)
            x = torch.cat([x[:, :1], own, x[:, 1 + own.shape[1] * (index > 0) :]], 1)
        if mixing is not None and index in mixing.layers:
            position = mixing.layers.index(index)
            slot = mixing.prompt(position, x[:, 0], values[CLASSES])
            x = torch.cat([x[:, :1], slot, x[:, 1 + (position > 0) :]], 1)
        x = block(x)
        x = x[0] if isinstance(x, tuple) else x
    return x


def average(updates: Sequence[Parameters]) -> Parameters:
    """Return the plain mean of the clients' parameters."""
    return {name: torch.stack([update[name] for update in updates]).mean(0) for name in updates[0]}


def difference(one: Parameters, other: Parameters) -> float:
    """Return the largest difference of two results' parameters."""
    return max(float((one[name] - tensor).abs().max()) for name, tensor in other.items())
