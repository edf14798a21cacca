"""pFedPG: the server generates each client's prompts by attention and learns how from its change."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

import fedcue.methods as fm

_nothing_yet = partial(fm.zeros, dtype=torch.int64)
"""How numbers of steps, and of clients visited, start."""

GENERATOR = ("basis", "query_weight", "key_weight", "value_weight", "output_weight")


class PFedPG(fm.Method):
    """Generated prompts at block 0, a head that never leaves the client.

    Only the descriptors of clients that were sampled are kept; the others' follow from the seed.
    """

    name: ClassVar[str] = "pfedpg"
    supports_heldout: ClassVar[bool] = False
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": fm.PAPER,
        "native": {**fm.PAPER, "training.lr": 0.25, "training.batch_size": 64},
    }

    prompts: int = fm.Field(default=10, ge=1, le=10_000, description="number of prompts of a client (K)")
    descriptor_vectors: Literal["one", "prompts"] = fm.Field(
        default="one", description="vectors that describe a client: one, or one per prompt"
    )
    descriptor_scale: float = fm.Field(
        default=1.0, gt=0, description="deviation of the descriptors' first values; no source gives one"
    )
    server_optimiser: Literal["adamw", "sgd"] = fm.Field(default="adamw", description="of the generator")
    server_lr: float = fm.Field(default=1e-3, ge=0, description="learning rate of the generator")
    server_weight_decay: float = fm.Field(default=1e-6, ge=0, description="of the generator")
    evaluation: Literal["adapt", "none"] = fm.Field(
        default="adapt", description="adapt: before the last test each client trains, for the test alone"
    )

    def adapts(self) -> bool:
        """Say whether clients train for the last test alone."""
        return self.evaluation == "adapt"

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare the generator, a descriptor for each client visited, and what a client has.

        A client is sent prompts ``[K, d]`` that are its own, sends their change, and keeps its head.
        """
        width, shape = sizes.width, (self.prompts, sizes.width)
        vectors = self.prompts if self.descriptor_vectors == "prompts" else 1
        starts = {name: fm.uniform(name, math.sqrt(3 / width)) for name in GENERATOR[1:]}
        return [
            fm.server("basis", shape, fm.prompt_start("basis", sizes)),
            *[fm.server(name, (width, width), start) for name, start in starts.items()],
            *moments("basis", shape),
            *[spec for name in starts for spec in moments(name, (width, width))],
            fm.server("descriptors", (None, vectors, width), fm.zeros),
            *moments("descriptors", (None, vectors, width)),
            fm.server("descriptor_ids", (None,), _nothing_yet, torch.int64),
            fm.server("seed", (), lambda shape, seed: torch.tensor(seed), torch.int64),
            fm.TensorSpec("prompts", shape, sent=True, trained=True),
            fm.TensorSpec("prompt_change", shape, returned=True, kind="own"),
            *[fm.kept_as(spec) for spec in super().tensors(sizes)],
        ]

    def download(self, state: fm.ServerState, client: int, sizes: fm.Sizes, seed: int) -> fm.Tensors:
        """Return the client's prompts ``[K, d]``, generated from its descriptor."""
        known = (state.tensors["descriptor_ids"] == client).nonzero().flatten()
        stored = state.tensors["descriptors"]
        own = stored[known] if len(known) else self.first_descriptor(stored, seed, client)
        return {"prompts": generate({**state.tensors, "descriptors": own}).squeeze(0)}

    def aggregate(self, state: fm.ServerState, sums: fm.Sums) -> fm.ServerState:
        """Step towards a generator and descriptors that give the senders the prompts they trained.

        The upstream gradient of a client's prompts is initial minus final, averaged over the senders.
        Descriptors and moments of all other clients stay as they are.
        """
        received = sums.each
        clients = torch.tensor([update.client for update in received])
        tensors = self.admit(state.tensors, clients)
        rows = (tensors["descriptor_ids"] == clients[:, None]).nonzero()[:, 1]
        sizes = torch.tensor([float(update.samples) for update in received])
        weights = sizes if self.weighting == "size" else torch.ones_like(sizes)
        change = torch.stack([update.tensors["prompt_change"] for update in received])  # [S, K, d]
        upstream = -change * (weights / weights.sum())[:, None, None]
        values = {name: tensors[name] for name in GENERATOR} | {"descriptors": tensors["descriptors"][rows]}
        for name, gradient in gradients(values, upstream).items():
            tensors |= self.step(tensors, name, gradient, rows if name == "descriptors" else slice(None))
        return fm.ServerState(state.round + 1, tensors)

    def first_descriptor(self, like: Tensor, seed: int, client: int) -> Tensor:
        """Draw the descriptor ``[1, 1 or K, d]`` a client has before its first visit."""
        generator = fm.torch_rng(seed, "init", "descriptor", client)
        return self.descriptor_scale * torch.randn(1, *like.shape[1:], generator=generator)

    def admit(self, tensors: fm.Tensors, clients: Tensor) -> dict[str, Tensor]:
        """Return ``tensors`` with a descriptor and empty moments for each client that had none."""
        stored, seed = tensors["descriptors"], int(tensors["seed"])
        new = clients[~torch.isin(clients, tensors["descriptor_ids"])]
        first = [self.first_descriptor(stored, seed, int(client)) for client in new]
        if not first:
            return dict(tensors)
        added = {"descriptor_ids": new, "descriptors": torch.cat(first)}
        for spec in moments("descriptors", added["descriptors"].shape):
            added[spec.name] = torch.zeros(*spec.shape, dtype=spec.dtype)  # type: ignore[arg-type]
        return {**tensors, **{name: torch.cat([tensors[name], rows]) for name, rows in added.items()}}

    def step(
        self, tensors: fm.Tensors, name: str, gradient: Tensor, rows: Tensor | slice
    ) -> dict[str, Tensor]:
        """Return the tensor ``name`` and its moments after an optimiser step of some or all ``rows``.

        All other rows stay as they are, their moments included, as if each row were a parameter of
        its own that has a gradient only now and then.
        """
        names = (name, f"{name}_mean", f"{name}_square", f"{name}_steps")
        value, mean, square, steps = (tensors[part][rows] for part in names)
        value = value * (1 - self.server_lr * self.server_weight_decay)
        if self.server_optimiser == "sgd":
            value = value - self.server_lr * gradient
        else:
            mean, square, steps = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2, steps + 1
            taken = steps.double().view(-1, *[1] * (value.ndim - 1))
            size = (square / (1 - 0.999**taken)).sqrt() + 1e-8
            value = value - (self.server_lr * mean / (1 - 0.9**taken) / size).to(value.dtype)
        after = {part: tensors[part].clone() for part in names}
        for part, new in zip(names, (value, mean, square, steps), strict=True):
            after[part][rows] = new
        return after

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert the client's prompts at block 0."""
        return fm.shallow(tensors["prompts"])

    def reply(self, client: fm.Client, sent: fm.Tensors, trained: fm.Tensors, loss: float) -> fm.Update:
        """Send how the prompts changed, keep the head."""
        update = super().reply(client, sent, trained, loss)
        return replace(update, tensors={"prompt_change": trained["prompts"] - sent["prompts"]})

    def for_test(self, client: fm.Client, sent: fm.Tensors, final: bool) -> fm.Tensors:
        """Return generated prompts and stored head or, at the end, what a visit makes of them."""
        if not (final and self.adapts()):
            return super().for_test(client, sent, final)
        start = self.personal(client, sent)
        return client.fit(self.loss(start), start)[0]


def generate(tensors: fm.Tensors) -> Tensor:
    """Return prompts ``[S, K, d]``: the basis plus what each descriptor attends to in it."""
    basis = tensors["basis"]
    query, key = tensors["descriptors"] @ tensors["query_weight"], basis @ tensors["key_weight"]
    attention = torch.softmax(query @ key.T / math.sqrt(basis.shape[1]), -1)  # [S, 1 or K, K]
    return basis + attention @ (basis @ tensors["value_weight"]) @ tensors["output_weight"]


def gradients(values: fm.Tensors, upstream: Tensor) -> dict[str, Tensor]:
    """Return the gradients of ``values`` by the chain rule from that of the prompts ``[S, K, d]``."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        found = torch.autograd.grad(generate(leaves), tuple(leaves.values()), upstream)
    return dict(zip(leaves, found, strict=True))


def moments(name: str, shape: tuple[int | None, ...]) -> list[fm.TensorSpec]:
    """Declare the optimiser's moments of the tensor ``name`` and its steps: one number, or one a row."""
    rowwise = name == "descriptors"
    return [
        fm.server(f"{name}_mean", shape, fm.zeros),
        fm.server(f"{name}_square", shape, fm.zeros),
        fm.server(f"{name}_steps", shape[:1] if rowwise else (1,), _nothing_yet, torch.int64),
    ]
