"""The contenders that run in one process: as a researcher writes it first, tuned, and fedcue."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from task import Mixing, Parameters, Task, average, prompted
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedcue.aggregate.mean import sum_updates
from fedcue.clients.federation import load_federation
from fedcue.data.image_sources import decode
from fedcue.rounds.executor import Executor
from fedcue.types import ClientMemory, Download, ServerState

OneRound = Callable[[int, Parameters], Parameters]
Outcome = tuple[list[tuple[float, float]], Parameters]
"""When each round started and ended (``time.time``), and the parameters in the end."""


def repeat(one_round: OneRound, values: Parameters, rounds: int) -> Outcome:
    """Do some rounds and note when each started and ended."""
    spans = []
    for round_ in range(rounds):
        started = time.time()
        values = one_round(round_, values)
        spans.append((started, time.time()))
    return spans, values


def tuned(task: Task, rounds: int, workers: int) -> Outcome:
    """Run the plain blocks on normalised pixels kept in memory, one model for all."""

    def one_round(round_: int, values: Parameters) -> Parameters:
        return average([task.tuned_visit(client, round_, values) for client in task.sampled(round_)])

    return repeat(one_round, task.start, rounds)


def ours(task: Task, rounds: int, workers: int) -> Outcome:
    """Run fedcue's engine."""
    config, method = task.config, task.config.method
    table = method.table(task.sizes)
    with Executor(load_federation(config), workers) as executor:

        def one_round(round_: int, values: Parameters) -> Parameters:
            state = ServerState(round_, values)
            sent = method.download(state, 0, task.sizes, config.seed)
            downloads = [Download(client, round_, sent) for client in task.sampled(round_)]
            outcomes = executor.train([(download, ClientMemory()) for download in downloads])
            sums = sum_updates((outcome[0] for outcome in outcomes), table)  # type: ignore[index]
            return dict(method.aggregate(state, sums).tensors)

        return repeat(one_round, task.start, rounds)


def typical(task: Task, rounds: int, workers: int) -> Outcome:
    """Copy a model per client, decode every image in every epoch."""
    whole = TypicalModel(task)

    def one_round(round_: int, values: Parameters) -> Parameters:
        return average([whole.visit(client, round_, values) for client in task.sampled(round_)])

    return repeat(one_round, task.start, rounds)


class DecodedEveryTime(Dataset[tuple[Tensor, int]]):
    """One client's images, decoded and resized whenever they are asked for."""

    def __init__(self, task: Task, client: int) -> None:
        self.task, self.client = task, task.clients[client]
        self.mean = torch.tensor(task.shape.mean).view(3, 1, 1)
        self.std = torch.tensor(task.shape.std).view(3, 1, 1)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.client.train)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        """Decode, resize and normalise one image."""
        pixels = decode(self.task.dataset.images, int(self.client.train[row]), self.task.shape.image_size)
        image = (torch.from_numpy(pixels.copy()).float() / 255 - self.mean) / self.std
        return image, int(self.client.train_labels[row])


class TypicalModel(nn.Module):
    """Transformers' ViT with prompts behind cls, if there are any, and a linear head."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.vit: Any = transformers_vit(task.backbone)
        for name, tensor in task.start.items():
            setattr(self, name, nn.Parameter(tensor.clone()))

    def forward(self, pixels: Tensor, mixing: Mixing | None = None) -> Tensor:
        """Return the logits."""
        layers = next(module for module in self.vit.modules() if isinstance(module, nn.ModuleList))
        values = {name: getattr(self, name) for name in self.task.start}
        x = prompted(layers, values, self.vit.embeddings(pixels), mixing)
        logits: Tensor = self.vit.layernorm(x)[:, 0] @ values["head"].T
        return logits

    def visit(self, client: int, round_: int, values: Parameters) -> Parameters:
        """Train a copy for one client."""
        model = copy.deepcopy(self, {id(self.task): self.task})
        own = {name: parameter for name, parameter in model.named_parameters() if name in values}
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(values[name])
        optimiser, mixing = self.task.optimiser(own, round_), self.task.mixing(client)
        images, batch = DecodedEveryTime(self.task, client), self.task.config.training.batch_size

        def described() -> Tensor:
            return torch.cat([model(pixels, mixing) for pixels, _ in DataLoader(images, batch)])

        self.task.describe(described)
        for order in self.task.orders(client, round_):
            for pixels, labels in DataLoader(images, batch, sampler=order.tolist()):
                with self.task.autocast():
                    logits = model(pixels, mixing)
                self.task.step(optimiser, F.cross_entropy(logits.float(), labels))
        return {name: parameter.detach() for name, parameter in own.items()}


def transformers_vit(backbone: Any) -> Any:
    """Return transformers' ViT with our backbone's weights."""
    operators = torch.library.Library("torchvision", "DEF")  # which torchvision has in GPU builds only
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from transformers import ViTConfig, ViTModel

    shape = backbone.architecture
    config = ViTConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.heads,
        intermediate_size=shape.hidden,
        image_size=shape.image_size,
        patch_size=shape.patch,
        layer_norm_eps=1e-6,
    )
    vit: Any = ViTModel(config, add_pooling_layer=False)
    model = vit.eval().requires_grad_(False)
    state, ours_ = model.state_dict(), backbone.state_dict()
    for name in state:
        state[name] = _counterpart(name, ours_).reshape(state[name].shape)
    model.load_state_dict(state)
    return model


def _counterpart(name: str, ours_: dict[str, Tensor]) -> Tensor:
    """Return our tensor for a parameter of transformers' ViT, whatever its version calls it."""
    top = {
        "embeddings.cls_token": "cls_token",
        "embeddings.position_embeddings": "pos_embed",
        "embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
        "embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
        "layernorm.weight": "norm.weight",
        "layernorm.bias": "norm.bias",
    }
    if name in top:
        return ours_[top[name]]
    words = name.split(".")
    block = next(word for word in words if word.isdigit())
    kind, rest = words[-1], name.split(f".{block}.")[1]
    thirds = {"query": 0, "q_proj": 0, "key": 1, "k_proj": 1, "value": 2, "v_proj": 2}
    for part, position in thirds.items():
        if part in words:
            return ours_[f"blocks.{block}.attn.qkv.{kind}"].chunk(3)[position]
    parts = {
        "attention.output.dense": "attn.proj", "attention.o_proj": "attn.proj", "layernorm_before": "norm1",
        "layernorm_after": "norm2", "intermediate.dense": "mlp.fc1", "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2", "output.dense": "mlp.fc2",
    }  # fmt: skip
    own = next(own for theirs, own in parts.items() if rest.startswith(theirs))
    return ours_[f"blocks.{block}.{own}.{kind}"]
