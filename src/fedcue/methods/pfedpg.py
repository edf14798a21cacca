"""pFedPG: the server generates each client's prompts by attention and learns how from its change."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedcue.aggregate.adamw import adamw, moments
from fedcue.methods.base import PAPER, Method, Visit, initial_head, initial_prompts, uniform
from fedcue.model.prompted import PromptedViT, Prompter
from fedcue.model.prompts import shallow
from fedcue.rng import torch_rng
from fedcue.train.samples import Batch
from fedcue.types import ClientMemory, Download, ServerState, Setting, Tensors, Update

GENERATOR = ("basis", "query_weight", "key_weight", "value_weight", "output_weight")


class PFedPG(Method):
    """Generated prompts at block 0, a head that never leaves the client.

    Only the descriptors of clients that were sampled are kept; the others' follow from the seed.
    """

    name: ClassVar[str] = "pfedpg"
    keeps_memory: ClassVar[bool] = True
    supports_heldout: ClassVar[bool] = False
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": PAPER,
        "native": {**PAPER, "training.lr": 0.25, "training.batch_size": 64},
    }

    prompts: int = Field(default=10, ge=1, description="number of prompts of a client (K)")
    descriptor_vectors: Literal["one", "prompts"] = Field(
        default="one", description="vectors that describe a client: one, or one per prompt"
    )
    server_optimiser: Literal["adamw", "sgd"] = "adamw"
    server_lr: float = Field(default=1e-3, ge=0)
    server_weight_decay: float = Field(default=1e-6, ge=0)
    evaluation: Literal["adapt", "none"] = Field(
        default="adapt", description="adapt: before the last test each client trains, for the test alone"
    )

    def shared(self) -> tuple[str, ...]:
        """Return the prompts: generated, trained, sent back, never averaged."""
        return ("prompts",)

    def private(self) -> tuple[str, ...]:
        """Return the names of the client's head."""
        return super().shared()

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return the basis ``[K, d]`` and the attention's weights ``[d, d]``."""
        width = setting.width
        bound = math.sqrt(3 / width)
        return {
            "basis": initial_prompts("basis", self.prompts, setting, seed),
            **{n: uniform((width, width), bound, torch_rng(seed, "init", n)) for n in GENERATOR[1:]},
        }

    def start(self, setting: Setting, seed: int, replies: Iterable[Update]) -> ServerState:
        """Return the generator, room for descriptors ``[clients seen, 1 or K, d]`` and the moments."""
        tensors = self.initial(setting, seed)
        for name in GENERATOR:
            tensors |= moments(name, tensors[name])
        vectors = self.prompts if self.descriptor_vectors == "prompts" else 1
        descriptors = torch.empty(0, vectors, setting.width)
        tensors |= {"descriptors": descriptors, **moments("descriptors", descriptors, rowwise=True)}
        ids = torch.empty(0, dtype=torch.int64)
        return ServerState(0, {**tensors, "descriptor_ids": ids, "seed": torch.tensor(seed)})

    def download(self, state: ServerState, client: int, seed: int) -> Download:
        """Return the client's prompts ``[K, d]``, generated from its descriptor."""
        known = (state.tensors["descriptor_ids"] == client).nonzero()[:, 0]
        stored = state.tensors["descriptors"]
        own = stored[known] if len(known) else first_descriptor(stored, seed, client)
        prompts = generate({**state.tensors, "descriptors": own})[0]
        return Download(client, state.round, seed, {"prompts": prompts})

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """Step towards a generator and descriptors that give the senders the prompts they trained.

        The upstream gradient of a client's prompts is initial minus final, averaged over the senders.
        Descriptors and moments of all other clients stay as they are.
        """
        received = list(updates)
        clients = torch.tensor([update.client for update in received])
        tensors = admit(state.tensors, clients)
        rows = (tensors["descriptor_ids"] == clients[:, None]).nonzero()[:, 1]
        weights = torch.tensor([update.samples if self.weighting == "size" else 1 for update in received])
        final = torch.stack([update.tensors["prompts"] for update in received])  # [S, K, d]
        values = {name: tensors[name] for name in GENERATOR} | {"descriptors": tensors["descriptors"][rows]}
        for name, gradient in prompt_gradients(values, final, weights / weights.sum()).items():
            stepped = rows if name == "descriptors" else None
            tensors |= self._step(tensors, name, gradient, stepped)
        return ServerState(state.round + 1, tensors)

    def _step(self, tensors: Tensors, name: str, gradient: Tensor, rows: Tensor | None) -> dict[str, Tensor]:
        """Return a server tensor, and its moments, after one step of the server's optimiser."""
        rate, decay = self.server_lr, self.server_weight_decay
        if self.server_optimiser == "adamw":
            return adamw(tensors, name, gradient, rate, decay, rows)
        chosen, after = slice(None) if rows is None else rows, tensors[name].clone()
        after[chosen] -= rate * (gradient + decay * after[chosen])
        return {name: after}

    def personalize(
        self, model: PromptedViT, download: Download, log_priors: Tensor, memory: ClientMemory
    ) -> Tensors:
        """Return the generated prompts and the client's head, at first the one all start with."""
        first = initial_head(log_priors.shape[-1], model.architecture.width, self.head_bias, download.seed)
        own = {name: tensor.to(model.device) for name, tensor in first.items()}
        return {**own, **download.tensors, **memory.tensors}

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Insert the client's prompts at block 0."""
        return shallow(tensors["prompts"])

    def for_test(self, visit: Visit, download: Download, memory: ClientMemory, final: bool) -> Tensors:
        """Return generated prompts and stored head or, at the end, what a visit makes of them."""
        if not final or self.evaluation == "none":
            return super().for_test(visit, download, memory, final)
        update, adapted = self.update(visit, download, memory)
        return {**update.tensors, **adapted.tensors}


def generate(tensors: Tensors) -> Tensor:
    """Return prompts ``[S, K, d]``: the basis plus what each descriptor attends to in it."""
    basis = tensors["basis"]
    query, key = tensors["descriptors"] @ tensors["query_weight"], basis @ tensors["key_weight"]
    attention = torch.softmax(query @ key.T / math.sqrt(basis.shape[1]), -1)  # [S, 1 or K, K]
    return basis + attention @ (basis @ tensors["value_weight"]) @ tensors["output_weight"]


def prompt_gradients(values: Tensors, final: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Return the gradients of ``values`` by the chain rule from initial minus ``final`` prompts."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        prompts = generate(leaves)
        upstream = weights[:, None, None] * (prompts.detach() - final)
        gradients = torch.autograd.grad(prompts, tuple(leaves.values()), upstream)
    return dict(zip(leaves, gradients, strict=True))


def first_descriptor(like: Tensor, seed: int, client: int) -> Tensor:
    """Draw the descriptor ``[1, 1 or K, d]`` a client has before its first visit."""
    return torch.randn(1, *like.shape[1:], generator=torch_rng(seed, "init", "descriptor", client))


def admit(tensors: Tensors, clients: Tensor) -> dict[str, Tensor]:
    """Return ``tensors`` with a descriptor and empty moments for each client that had none."""
    new = clients[~torch.isin(clients, tensors["descriptor_ids"])]
    first = [first_descriptor(tensors["descriptors"], int(tensors["seed"]), int(client)) for client in new]
    if not first:
        return dict(tensors)
    added = {"descriptor_ids": new, "descriptors": torch.cat(first)}
    added |= moments("descriptors", added["descriptors"], rowwise=True)
    return {**tensors, **{name: torch.cat([tensors[name], rows]) for name, rows in added.items()}}
