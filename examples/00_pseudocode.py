"""PEP-FedPT in plain lines: the paper's two algorithms, without the engine, on the embedded data.

Run it with ``python examples/00_pseudocode.py``. A test holds its result to that of ``fedcue run``.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor

import fedcue
from fedcue.federate.federation import Federation
from fedcue.federate.sampling import sample_clients
from fedcue.rng import torch_rng

LAYERS, TEMPERATURE, PERIOD, MOMENTUM = (4, 5, 6), 0.05, 10, 0.5


def forward(vit, images, shared, classes, prototypes, priors, stop=None):  # type: ignore[no-untyped-def]
    """Return the final cls token, and cls at the input of every mixed layer."""
    x = vit.embed(vit.normalise(images))
    x = torch.cat([x[:, :1], shared.expand(len(x), -1, -1), x[:, 1:]], 1)
    seen: list[Tensor] = []
    for index, block in enumerate(vit.blocks):
        if index in LAYERS:
            cls, mu = x[:, 0], prototypes[len(seen)]
            scores = torch.softmax(F.cosine_similarity(cls[:, None], mu[None], -1) / TEMPERATURE + priors.log(), -1)
            mixed = scores @ classes
            x = torch.cat([x[:, :1], mixed[:, None], x[:, 1 if not seen else 2 :]], 1)
            seen.append(cls)
        x = block(x)
    return vit.norm(x)[:, 0], torch.stack(seen, 1)


def bare_cls(vit, images):  # type: ignore[no-untyped-def]
    """Return cls of the bare ViT at the input of every mixed layer."""
    x, seen = vit.embed(vit.normalise(images)), []
    for index, block in enumerate(vit.blocks):
        if index in LAYERS:
            seen.append(x[:, 0])
        x = block(x)
    return torch.stack(seen, 1)


def centroids(vectors: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the mean vector of every class ``[L, C, d]`` and which classes are there ``[C]``."""
    one_hot = F.one_hot(labels, count).to(vectors.dtype)  # [N, C]
    totals = torch.einsum("nc,nld->lcd", one_hot, vectors)
    return totals / one_hot.sum(0).clamp(min=1)[:, None], one_hot.sum(0) > 0


def main(rounds: int = 2, overrides: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Do a few rounds of PEP-FedPT; return the shared tensors."""
    config = fedcue.configure("default", [f"rounds={rounds}", "workers=1", *overrides])
    federation = Federation(config)
    vit, count, training = federation.model.backbone, federation.setting.classes, config.training
    data = {c.id: (federation.pixels[c.train], torch.from_numpy(c.train_labels)) for c in federation.clients}
    priors = {c.id: torch.from_numpy(c.class_priors).float() for c in federation.clients}

    theta = config.method.initial(federation.setting, config.seed)  # H, P_S and P_C
    with torch.no_grad():  # warm start: prototypes of the bare ViT
        replies = [centroids(bare_cls(vit, x), y, count) for x, y in (data[k] for k in federation.training_clients.tolist())]
    holders = torch.stack([there for _, there in replies]).sum(0).clamp(min=1)
    prototypes = torch.stack([mu for mu, _ in replies]).sum(0) / holders[:, None]
    buffer: list[tuple[Tensor, Tensor]] = []

    for t in range(rounds):
        sampled = sample_clients(federation.training_clients, config, t)
        updates = []
        for k in sampled:
            images, labels = data[k]
            with torch.no_grad():  # local centroids under the broadcast prompts, before training
                _, cls = forward(vit, images, theta["shared_prompts"], theta["class_prompts"], prototypes, priors[k])
                buffer.append(centroids(cls, labels, count))
            local = {name: tensor.clone().requires_grad_() for name, tensor in theta.items()}
            held = (priors[k] > 0)[:, None]
            velocity = {name: torch.zeros_like(tensor) for name, tensor in local.items()}
            generator = torch_rng(config.seed, "client", k, t)
            for _ in range(training.epochs):
                for rows in torch.randperm(len(labels), generator=generator).split(training.batch_size):
                    cls, _ = forward(
                        vit, images[rows], local["shared_prompts"], local["class_prompts"], prototypes, priors[k]
                    )
                    loss = F.cross_entropy(cls @ local["head"].T, labels[rows])
                    gradients = dict(zip(local, torch.autograd.grad(loss, tuple(local.values())), strict=True))
                    norm = torch.stack([g.norm() for g in gradients.values()]).norm()
                    scale = (training.clip_norm / (norm + 1e-6)).clamp(max=1)
                    with torch.no_grad():
                        for name, tensor in local.items():
                            rate = training.head_lr if name == "head" else training.prompt_lr
                            decay = training.weight_decay * tensor * (held if name == "class_prompts" else 1)
                            velocity[name] = training.momentum * velocity[name] + gradients[name] * scale + decay
                            tensor -= rate * training.lr_decay**t * velocity[name]
            updates.append({name: tensor.detach() for name, tensor in local.items()})
        theta = {name: torch.stack([update[name] for update in updates]).mean(0) for name in theta}
        if (t + 1) % PERIOD == 0:
            seen = torch.stack([there for _, there in buffer]).sum(0)
            recent = torch.stack([mu for mu, _ in buffer]).sum(0) / seen.clamp(min=1)[:, None]
            moved = MOMENTUM * prototypes + (1 - MOMENTUM) * recent
            prototypes, buffer = torch.where((seen > 0)[:, None], moved, prototypes), []
        print(f"round {t + 1}: {len(sampled)} clients trained, last loss {loss.item():.3f}")
    return {**theta, "prototypes": prototypes}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
