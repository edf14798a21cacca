"""PEP-FedPT in plain lines: the paper's two algorithms, without the engine, on the embedded data.

Run it with ``python examples/00_pseudocode.py``. A test holds its result to that of ``fedcue run``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fedcue
from fedcue.clients.federation import load_federation
from fedcue.rng import torch_rng

LAYERS, TEMPERATURE, PERIOD, MOMENTUM = (4, 5, 6), 0.05, 10, 0.5


def forward(
    vit: Any, images: Tensor, theta: Any, prototypes: Tensor, priors: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the final cls token, and cls at the input of every mixed layer."""
    x = vit.embed(vit.normalise(images))
    x = torch.cat([x[:, :1], theta["shared_prompts"].expand(len(x), -1, -1), x[:, 1:]], 1)
    seen: list[Tensor] = []
    for index, block in enumerate(vit.blocks):
        if index in LAYERS:
            cls = x[:, 0]
            similarity = F.cosine_similarity(cls[:, None], prototypes[len(seen)][None], -1)
            scores = torch.softmax(similarity / TEMPERATURE + priors.log(), -1)
            mixed = scores @ theta["class_prompts"]
            x = torch.cat([x[:, :1], mixed[:, None], x[:, 2 if seen else 1 :]], 1)  # one slot
            seen.append(cls)
        x = block(x)
    return vit.norm(x)[:, 0], torch.stack(seen, 1)


def bare_cls(vit: Any, images: Tensor) -> Tensor:
    """Return cls of the bare ViT at the input of every mixed layer."""
    x, seen = vit.embed(vit.normalise(images)), []
    for index, block in enumerate(vit.blocks):
        if index in LAYERS:
            seen.append(x[:, 0])
        x = block(x)
    return torch.stack(seen, 1)


def centroids(vectors: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean vector of every class ``[L, C, d]`` and which classes are there ``[C]``."""
    one_hot = F.one_hot(labels, classes).to(vectors.dtype)  # [N, C]
    totals = torch.einsum("nc,nld->lcd", one_hot, vectors)
    return totals / one_hot.sum(0).clamp(min=1)[:, None], one_hot.sum(0) > 0


def mean_of_holders(replies: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Average centroids over the clients that hold a class; return them and the number of holders."""
    holders = torch.stack([there for _, there in replies]).sum(0)
    return torch.stack([mu for mu, _ in replies]).sum(0) / holders.clamp(min=1)[:, None], holders


def local_train(
    vit: Any, theta: Any, data: Any, prototypes: Tensor, training: Any, t: int, generator: Any
) -> Any:
    """Train H, P_S and P_C by SGD from the broadcast values (LocalTrain)."""
    images, labels, priors = data
    local = {name: tensor.clone().requires_grad_() for name, tensor in theta.items()}
    velocity = {name: torch.zeros_like(tensor) for name, tensor in local.items()}
    held = (priors > 0)[:, None]
    for _ in range(training.epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(training.batch_size):
            cls, _ = forward(vit, images[rows], local, prototypes, priors)
            loss = F.cross_entropy(cls @ local["head"].T, labels[rows])
            gradients = torch.autograd.grad(loss, tuple(local.values()))
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            scale = (training.clip_norm / (norm + 1e-6)).clamp(max=1)
            with torch.no_grad():
                for (name, tensor), gradient in zip(local.items(), gradients, strict=True):
                    rate = training.head_lr if name == "head" else training.prompt_lr
                    decay = training.weight_decay * tensor * (held if name == "class_prompts" else 1)
                    velocity[name] = training.momentum * velocity[name] + gradient * scale + decay
                    tensor -= rate * training.lr_decay**t * velocity[name]
    return {name: tensor.detach() for name, tensor in local.items()}


def main(rounds: int = 2, overrides: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Do a few rounds of PEP-FedPT (Algorithm 2); return the shared tensors and the prototypes."""
    config = fedcue.configure("default", [f"rounds={rounds}", "workers=1", *overrides])
    federation = load_federation(config)
    roster, vit = federation.roster, federation.model.backbone
    classes = roster.sizes.classes
    data = {
        client.id: (
            federation.pixels[client.train],
            torch.from_numpy(client.train_labels),
            torch.from_numpy(client.class_priors).float(),
        )
        for client in federation.clients
    }
    first = roster.table.first(config.seed)
    theta = {name: first[name] for name in roster.table.trained}  # H, P_S and P_C
    with torch.no_grad():
        warm = [data[client] for client in roster.schedule.first()]
        prototypes, _ = mean_of_holders([centroids(bare_cls(vit, x), y, classes) for x, y, _ in warm])
    buffer: list[tuple[Tensor, Tensor]] = []

    for t in range(rounds):
        updates = []
        for k in roster.schedule.drawn(t):
            images, labels, priors = data[k]
            with torch.no_grad():  # centroids under the broadcast prompts, before training
                buffer.append(centroids(forward(vit, images, theta, prototypes, priors)[1], labels, classes))
            generator = torch_rng(config.seed, "client", k, t)
            updates.append(local_train(vit, theta, data[k], prototypes, config.training, t, generator))
        theta = {name: torch.stack([update[name] for update in updates]).mean(0) for name in theta}
        if (t + 1) % PERIOD == 0:
            recent, holders = mean_of_holders(buffer)
            moved = MOMENTUM * prototypes + (1 - MOMENTUM) * recent
            prototypes, buffer = torch.where((holders > 0)[:, None], moved, prototypes), []
        print(f"round {t + 1}: {len(updates)} clients trained")
    return {**theta, "prototypes": prototypes}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
