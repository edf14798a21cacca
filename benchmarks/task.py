"""The job all contenders do: the same clients, images, first values, batches and steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import fedcue
from fedcue.clients.roster import ClientSchedule
from fedcue.data.clients import make_clients
from fedcue.data.pixels import decode_images
from fedcue.model.backbone import load_backbone
from fedcue.model.vit import VisionTransformer
from fedcue.rng import rng, torch_rng
from fedcue.types import Sizes

Parameters = dict[str, Tensor]
PROMPTS = "shared_prompts"


class Task:
    """What follows from a configuration; images are decoded when a contender asks for them."""

    def __init__(self, config: fedcue.RunConfig) -> None:
        self.config = config
        self.dataset = config.data.load(config.seed)
        partition = config.partition.split(self.dataset, rng(config.seed, "partition"))
        self.clients = make_clients(self.dataset, partition, heldout=config.heldout, seed=config.seed)
        training = np.delete(np.arange(len(self.clients)), self.clients.heldout)
        self.schedule = ClientSchedule(
            training, config.clients_per_round, config.rounds, config.warm_start, config.seed
        )
        self.backbone: VisionTransformer = load_backbone(config.backbone.name, config.backbone.image_size)
        self.shape = self.backbone.architecture
        shape = (self.shape.width, self.shape.depth, self.shape.patch)
        self.sizes = Sizes(len(self.dataset.classes), *shape, len(self.clients))
        self.start: Parameters = config.method.table(self.sizes).first(config.seed)
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
            decoded = decode_images(self.dataset, own.train, self.shape.image_size).images
            self._kept[client] = self.backbone.normalise(decoded), torch.from_numpy(own.train_labels)
        return self._kept[client]

    def optimiser(self, parameters: Parameters, round_: int) -> torch.optim.SGD:
        """Return the optimiser of a visit."""
        training, decay = self.config.training, self.config.training.lr_decay**round_
        given = {"head": training.head_lr, PROMPTS: training.prompt_lr}
        rates = {name: training.lr if rate is None else rate for name, rate in given.items()}
        groups = [{"params": [tensor], "lr": rates[name] * decay} for name, tensor in parameters.items()]
        return torch.optim.SGD(groups, momentum=training.momentum, weight_decay=training.weight_decay)

    def step(self, optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        """Take one clipped step."""
        optimiser.zero_grad()
        loss.backward()
        tensors = [tensor for group in optimiser.param_groups for tensor in group["params"]]
        nn.utils.clip_grad_norm_(tensors, self.config.training.clip_norm)
        optimiser.step()

    def tuned_visit(self, client: int, round_: int, values: Parameters) -> Parameters:
        """Train one client with the plain blocks for all tokens, on pixels kept in memory."""
        own = {name: tensor.clone().requires_grad_() for name, tensor in values.items()}
        optimiser = self.optimiser(own, round_)
        images, labels = self.images(client)
        for order in self.orders(client, round_):
            for rows in order.split(self.config.training.batch_size):
                logits = plain_logits(self.backbone, own, images[rows])
                self.step(optimiser, nn.functional.cross_entropy(logits, labels[rows]))
        return {name: tensor.detach() for name, tensor in own.items()}


def plain_logits(vit: VisionTransformer, values: Parameters, images: Tensor) -> Tensor:
    """Run every block for every token."""
    x = vit.embed(images)
    if PROMPTS in values:
        x = torch.cat([x[:, :1], values[PROMPTS].expand(len(x), -1, -1), x[:, 1:]], 1)
    for block in vit.blocks:
        x = block(x)
    return vit.norm(x)[:, 0] @ values["head"].T


def average(updates: Sequence[Parameters]) -> Parameters:
    """Return the plain mean of the clients' parameters."""
    return {name: torch.stack([update[name] for update in updates]).mean(0) for name in updates[0]}


def difference(one: Parameters, other: Parameters) -> float:
    """Return the largest difference of two results' parameters."""
    return max(float((one[name] - tensor).abs().max()) for name, tensor in other.items())
