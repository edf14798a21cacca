"""The same federated rounds of FedVPT as others would write them and as fedcue runs them, side by side.

``typical`` is what a researcher would write first: transformers' ViT, a DataLoader that decodes and
resizes every image in every epoch, and a model copied per client. ``tuned`` runs the plain blocks on
pixels kept in memory, one model for all. Contenders take turns; all start from the same values, see
the same batches and must end with the same parameters to 1e-4. Each uses one thread.

    python benchmarks/round.py --backbone FOLDER --root CIFAR100_FOLDER --json round.json
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fedcue
from fedcue.data.images import decode
from fedcue.federate.executor import Executor
from fedcue.federate.federation import Federation
from fedcue.federate.sampling import sample_clients
from fedcue.rng import torch_rng
from fedcue.types import ClientMemory, ServerState

Parameters = dict[str, Tensor]


class Task:
    """What all contenders share: the federation, the first values, the batches."""

    def __init__(self, config: fedcue.RunConfig) -> None:
        self.config = config
        self.federation = Federation(config)
        self.start = config.method.initial(self.federation.setting, config.seed)

    def clients(self, round_: int) -> list[int]:
        """Return the clients of a round."""
        return sample_clients(self.federation.training_clients, self.config, round_)

    def orders(self, client: int, round_: int) -> list[Tensor]:
        """Return the order of a client's images in each epoch, as fedcue draws it."""
        generator = torch_rng(self.config.seed, "client", client, round_)
        count = len(self.federation.clients[client].train)
        return [torch.randperm(count, generator=generator) for _ in range(self.config.training.epochs)]

    def optimiser(self, head: Tensor, prompts: Tensor, round_: int) -> torch.optim.SGD:
        """Return the optimiser of a visit."""
        training, decay = self.config.training, self.config.training.lr_decay**round_
        groups = [
            {"params": [head], "lr": (training.head_lr or training.lr) * decay},
            {"params": [prompts], "lr": (training.prompt_lr or training.lr) * decay},
        ]
        return torch.optim.SGD(groups, momentum=training.momentum, weight_decay=training.weight_decay)


def average(updates: Sequence[Parameters]) -> Parameters:
    """Return the plain mean of the clients' parameters."""
    return {name: torch.stack([update[name] for update in updates]).mean(0) for name in updates[0]}


class DecodedEveryTime(Dataset[tuple[Tensor, int]]):
    """One client's images, decoded and resized whenever they are asked for."""

    def __init__(self, task: Task, client: int) -> None:
        self.task, self.client = task, task.federation.clients[client]
        self.architecture = task.federation.model.architecture

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.client.train)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        """Decode, resize and normalise one image."""
        index = int(self.client.train[row])
        pixels = decode(self.task.federation.dataset.images, index, self.architecture.image_size)
        mean = torch.tensor(self.architecture.mean).view(3, 1, 1)
        std = torch.tensor(self.architecture.std).view(3, 1, 1)
        return (torch.from_numpy(pixels.copy()).float() / 255 - mean) / std, int(
            self.client.train_labels[row]
        )


class PromptedTransformersViT(nn.Module):
    """Transformers' ViT with one prompt behind cls and a linear head."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.vit = transformers_vit(task.federation.model.backbone)
        self.head = nn.Parameter(task.start["head"].clone())
        self.prompts = nn.Parameter(task.start["shared_prompts"].clone())

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits."""
        x = self.vit.embeddings(pixels)
        x = torch.cat([x[:, :1], self.prompts.expand(len(x), -1, -1), x[:, 1:]], 1)
        for layer in next(module for module in self.vit.modules() if isinstance(module, nn.ModuleList)):
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.vit.layernorm(x)[:, 0] @ self.head.T


def transformers_vit(backbone: Any) -> nn.Module:
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
    model = ViTModel(config, add_pooling_layer=False).eval().requires_grad_(False)
    state, ours = model.state_dict(), backbone.state_dict()
    for name in state:
        state[name] = _counterpart(name, ours).reshape(state[name].shape)
    model.load_state_dict(state)
    return model


def _counterpart(name: str, ours: dict[str, Tensor]) -> Tensor:
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
        return ours[top[name]]
    words = name.split(".")
    block = next(word for word in words if word.isdigit())
    kind, rest = words[-1], name.split(f".{block}.")[1]
    for part, position in (
        ("query", 0),
        ("q_proj", 0),
        ("key", 1),
        ("k_proj", 1),
        ("value", 2),
        ("v_proj", 2),
    ):
        if part in words:
            return ours[f"blocks.{block}.attn.qkv.{kind}"].chunk(3)[position]
    parts = {
        "attention.output.dense": "attn.proj", "attention.o_proj": "attn.proj", "layernorm_before": "norm1",
        "layernorm_after": "norm2", "intermediate.dense": "mlp.fc1", "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2", "output.dense": "mlp.fc2",
    }  # fmt: skip
    own = next(own for theirs, own in parts.items() if rest.startswith(theirs))
    return ours[f"blocks.{block}.{own}.{kind}"]


def typical(task: Task) -> Callable[[int, Parameters], Parameters]:
    """Copy a model per client, decode every image in every epoch."""
    whole = PromptedTransformersViT(task)

    def one_round(round_: int, values: Parameters) -> Parameters:
        updates = []
        for client in task.clients(round_):
            model = copy.deepcopy(whole)
            model.load_state_dict({"head": values["head"], "prompts": values["shared_prompts"]}, strict=False)
            optimiser = task.optimiser(model.head, model.prompts, round_)
            for order in task.orders(client, round_):
                loader = DataLoader(
                    DecodedEveryTime(task, client), task.config.training.batch_size, sampler=order.tolist()
                )
                for pixels, labels in loader:
                    step(optimiser, F.cross_entropy(model(pixels), labels), task)
            updates.append({"head": model.head.detach(), "shared_prompts": model.prompts.detach()})
        return average(updates)

    return one_round


def tuned(task: Task) -> Callable[[int, Parameters], Parameters]:
    """Run the plain blocks for all tokens on normalised pixels kept in memory, one model for all."""
    vit, kept = task.federation.model.backbone, {}

    def pixels_of(client: int) -> tuple[Tensor, Tensor]:
        if client not in kept:
            own = task.federation.clients[client]
            images = vit.normalise(task.federation.pixels[own.train])
            kept[client] = images, torch.from_numpy(own.train_labels)
        return kept[client]

    def one_round(round_: int, values: Parameters) -> Parameters:
        updates = []
        for client in task.clients(round_):
            head, prompts = (values[name].clone().requires_grad_() for name in ("head", "shared_prompts"))
            optimiser = task.optimiser(head, prompts, round_)
            images, labels = pixels_of(client)
            for order in task.orders(client, round_):
                for rows in order.split(task.config.training.batch_size):
                    x = vit.embed(images[rows])
                    x = torch.cat([x[:, :1], prompts.expand(len(x), -1, -1), x[:, 1:]], 1)
                    for block in vit.blocks:
                        x = block(x)
                    step(optimiser, F.cross_entropy(vit.norm(x)[:, 0] @ head.T, labels[rows]), task)
            updates.append({"head": head.detach(), "shared_prompts": prompts.detach()})
        return average(updates)

    return one_round


def step(optimiser: torch.optim.Optimizer, loss: Tensor, task: Task) -> None:
    """Take one clipped step."""
    optimiser.zero_grad()
    loss.backward()
    tensors = [tensor for group in optimiser.param_groups for tensor in group["params"]]
    nn.utils.clip_grad_norm_(tensors, task.config.training.clip_norm)
    optimiser.step()


def ours(task: Task) -> Callable[[int, Parameters], Parameters]:
    """Run fedcue's engine in this process."""
    executor, method = Executor(task.federation, 1), task.config.method

    def one_round(round_: int, values: Parameters) -> Parameters:
        state = ServerState(round_, values)
        downloads = [method.download(state, client, task.config.seed) for client in task.clients(round_)]
        outcomes = executor.train([(download, ClientMemory()) for download in downloads])
        return dict(method.aggregate(state, (outcome[0] for outcome in outcomes)).tensors)  # type: ignore[index]

    return one_round


def main() -> None:
    """Let the contenders take turns and print the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--root", type=Path, default=None, help="CIFAR-100 folder (default: digits)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = [
        "method=fedvpt", f"backbone={given.backbone}", "clients_per_round=2", "workers=1",
        f"training.batch_size={given.batch}",
        f"training.epochs={given.epochs}", f"rounds={given.rounds}",
    ]  # fmt: skip
    if given.image_size:
        settings.append(f"backbone.image_size={given.image_size}")
    if given.root:
        settings += [
            "data=cifar100",
            f"data.root={given.root}",
            "data.train_per_class=20",
            "data.test_per_class=2",
        ]
    result = compare(Task(fedcue.configure("default", settings)), given.rounds)
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


def compare(task: Task, rounds: int) -> dict[str, Any]:
    """Return each contender's seconds per round and how they compare with fedcue."""
    makers = {"typical": typical, "tuned": tuned, "fedcue": ours}
    contenders = {name: make(task) for name, make in makers.items()}
    values = dict.fromkeys(contenders, task.start)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds):
        for name, one_round in contenders.items():
            started = time.perf_counter()
            values[name] = one_round(round_, values[name])
            seconds[name].append(time.perf_counter() - started)
    gaps = {
        name: max(float((values[name][key] - values["fedcue"][key]).abs().max()) for key in task.start)
        for name in contenders
    }
    if max(gaps.values()) > 1e-4:
        raise SystemExit(f"the contenders disagree: {gaps}")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    images = int(np.sum([len(task.federation.clients[c].train) for c in task.clients(0)]))
    return {
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
        "images_in_first_round": images,
        "seconds_per_round": seconds,
        "times_as_long_as_fedcue": {name: median / medians["fedcue"] for name, median in medians.items()},
        "largest_difference_of_parameters": gaps,
    }


if __name__ == "__main__":
    main()
