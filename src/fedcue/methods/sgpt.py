"""SGPT: shared prompts in the early blocks, then group prompts chosen for each image by keys."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedcue.aggregate.keys import PLAIN, count_keys, mean_keys, orthonormal
from fedcue.aggregate.mean import Combine, sum_updates
from fedcue.errors import ConfigError
from fedcue.methods.base import PAPER, Method, Visit, classify, initial_prompts, uniform
from fedcue.model.prompted import PromptedViT, Prompter
from fedcue.model.prompts import inserted
from fedcue.rng import torch_rng
from fedcue.train.local import Loss
from fedcue.train.samples import Batch
from fedcue.types import ClientMemory, Download, ServerState, Setting, Tensors, Update


class SGPT(Method):
    """Two stages per visit: shared prompts and head, then group prompts, keys and head."""

    name: ClassVar[str] = "sgpt"
    prompt_names: ClassVar[tuple[str, ...]] = ("shared_prompts", "group_prompts", "keys")
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": PAPER,
        "native": {
            **PAPER,
            "method.head_bias": True,
            "method.weighting": "size",
            "training.lr": 0.01,
            "training.weight_decay": 1e-5,
            "training.batch_size": 40,
        },
    }

    groups: int = Field(default=20, ge=1, le=10_000, description="number of groups (K)")
    shared_blocks: int = Field(default=4, ge=1, description="first blocks, with shared prompts")
    group_blocks: int = Field(default=3, ge=1, description="next blocks, with group prompts")
    prompts: int = Field(default=1, ge=1, le=10_000, description="number of shared prompts at block 0")
    prompt_init: Literal["zeros", "vpt"] = Field(default="zeros", description="of the shared prompts")
    query_block: int | None = Field(
        default=None, ge=1, description="block at whose input cls is the query (default: the output)"
    )
    batch_majority: bool = Field(default=False, description="train each batch with its most frequent group")
    momentum: float = Field(default=0.5, ge=0, lt=1, description="of the group prompts at the server")
    key_momentum: float = Field(default=0.5, ge=0, lt=1, description="of the keys at the server")

    def check(self, setting: Setting) -> None:
        """Refuse blocks beyond the last one, and more keys than can be orthogonal."""
        last = max(self.shared_blocks + self.group_blocks, self.query_block or 0)
        if last > setting.depth or self.groups > setting.width:
            raise ConfigError(
                f"SGPT needs {last} blocks and width {self.groups} or more; the backbone has {setting.depth} "
                f"and {setting.width}. Lower method.shared_blocks, group_blocks, query_block or groups."
            )

    def bare_blocks(self, setting: Setting) -> tuple[int, ...]:
        """Return where the query is taken from the bare backbone."""
        return (self.query_block or setting.depth,)

    def sent(self) -> tuple[str, ...]:
        """Return the trained tensors and how often each group was chosen so far."""
        return (*self.shared(), "counts")

    def returned(self) -> tuple[str, ...]:
        """Return the trained tensors and how often the client chose each group."""
        return self.sent()

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return head, shared prompts ``[n, d]``, group prompts ``[blocks, K, d]``, keys ``[K, d]``."""
        shared, width = self.prompts + self.shared_blocks - 1, setting.width
        grouped = initial_prompts("group_prompts", self.group_blocks * self.groups, setting, seed)
        bound = math.sqrt(6 / (self.groups + width))
        keys = uniform((self.groups, width), bound, torch_rng(seed, "init", "keys"))
        return super().initial(setting, seed) | {
            "shared_prompts": initial_prompts("shared_prompts", shared, setting, seed, self.prompt_init),
            "group_prompts": grouped.view(self.group_blocks, self.groups, width),
            "keys": orthonormal(keys),
            "counts": torch.zeros(self.groups, dtype=torch.int64),
        }

    def aggregate(
        self, state: ServerState, updates: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """Average; move groups and keys with momentum; add up the counts."""
        sums = combine(map(count_keys, updates), self.weighting, PLAIN)
        old, new = state.tensors, {name: sums.mean(name) for name in self.shared()}
        new["group_prompts"] = torch.lerp(new["group_prompts"], old["group_prompts"], self.momentum)
        new["keys"] = torch.lerp(mean_keys(sums), old["keys"], self.key_momentum)
        new["counts"] = old["counts"] + sums.tensors["counts"].to(torch.int64)
        return ServerState(state.round + 1, {**old, **new})

    def update(self, visit: Visit, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train without groups, then the groups behind the new shared prompts, each with its optimiser.

        The loss reported is the first stage's: the second one's also holds the key term.
        """
        tensors, counts = download.tensors, torch.zeros_like(download.tensors["counts"])
        head = tuple(name for name in self.shared() if name not in self.prompt_names)
        start = {name: tensors[name] for name in (*head, "shared_prompts")}
        first, loss = visit.fit(self._shared_loss(visit.model), start, download.round)
        tensors = {**tensors, **first}
        start = {name: tensors[name] for name in (*head, "group_prompts", "keys")}
        second, _ = visit.fit(self._group_loss(visit.model, tensors, counts), start, download.round)
        sent = {**first, **second, "counts": counts}
        return Update(visit.client, len(visit.samples), sent, loss), memory

    def logits(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Tensor:
        """Classify with the group whose key is nearest, whatever the client and the counts."""
        return self._logits(model, tensors, batch, self._nearest(model, tensors, batch))

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Insert the shared prompts and those of the nearest group; they accumulate."""
        return inserted(self._tokens(tensors, self._nearest(model, tensors, batch)))

    def inspect(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> dict[str, Tensor]:
        """Return which group each image takes, one-hot ``[B, K]``."""
        return {"groups": F.one_hot(self._nearest(model, tensors, batch), self.groups).float()}

    def _nearest(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Tensor:
        return self._similarity(model, tensors["keys"], batch).argmax(-1)

    def _similarity(self, model: PromptedViT, keys: Tensor, batch: Batch) -> Tensor:
        """Return the cosines ``[B, K]`` of the images' queries, from the bare backbone, and the keys."""
        query = F.relu(model.backbone.norm(batch.bare_cls[:, 0]))
        return F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).T

    def _tokens(self, tensors: Tensors, groups: Tensor | None) -> dict[int, Tensor]:
        """Return by block the shared prompts and those of each image's group, if groups are on."""
        sizes = [self.prompts, *[1] * (self.shared_blocks - 1)]
        tokens = dict(enumerate(torch.split(tensors["shared_prompts"], sizes)))
        if groups is not None:
            for block, prompts in enumerate(tensors["group_prompts"], self.shared_blocks):
                tokens[block] = prompts[groups, None]  # [B, 1, d]
        return tokens

    def _logits(self, model: PromptedViT, tensors: Tensors, batch: Batch, groups: Tensor | None) -> Tensor:
        """Classify cls or, if groups are on, the mean of cls and the group tokens right behind it."""
        read = 1 if groups is None else 1 + self.group_blocks
        features = model.features(batch.inputs, inserted(self._tokens(tensors, groups)), read)
        return classify(tensors, features.mean(1))

    def _shared_loss(self, model: PromptedViT) -> Loss:
        return lambda trained, batch: self.cross_entropy(self._logits(model, trained, batch, None), batch)

    def _group_loss(self, model: PromptedViT, fixed: Tensors, counts: Tensor) -> Loss:
        """Cross-entropy minus the chosen keys' cosine; ``counts`` takes note of the choices.

        Rarely used groups seem nearer: distances are weighed by the groups' past use, which stays
        as it was sent for the whole round.
        """
        used = fixed["counts"].double()
        scale = (used / used.sum() + 5e-4 if used.any() else torch.ones_like(used)).float()

        def of_batch(trained: Tensors, batch: Batch) -> Tensor:
            similarity = self._similarity(model, trained["keys"], batch)
            chosen = ((1 - similarity.detach()) * scale).argmin(-1)
            if self.batch_majority:
                chosen = torch.full_like(chosen, int(torch.bincount(chosen).argmax()))
            counts.add_(torch.bincount(chosen, minlength=self.groups))
            logits = self._logits(model, {**fixed, **trained}, batch, chosen)
            return self.cross_entropy(logits, batch) - similarity.gather(1, chosen[:, None]).mean()

        return of_batch
