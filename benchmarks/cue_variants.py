"""Variants of cue that were tried and are not part of it (docs/cue.md has what came of them).

Run with ``PYTHONPATH=benchmarks`` and ``--methods cue,cue_variants:Mixed``, say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedcue.aggregate.mean import Combine, sum_updates
from fedcue.aggregate.class_means import first_prototypes, move_prototypes, prototype_head, whitening
from fedcue.methods.base import Visit, classify, initial_prompts
from fedcue.methods.cue import Cue
from fedcue.model.prompted import Insertion, PromptedViT, Prompter
from fedcue.model.prompts import class_scores
from fedcue.train.batches import Batch
from fedcue.types import ClientMemory, Download, ServerState, Sizes, Tensors, Update


class Mixed(Cue):
    """PEP's class prompts on top: mixed by prototypes and priors, as differences from the cls token."""

    name: ClassVar[str] = "cue_mixed"
    prompt_names: ClassVar[tuple[str, ...]] = ("prompts", "class_prompts")
    class_rows: ClassVar[dict[str, int]] = {**Cue.class_rows, "class_prompts": 0, "prototypes": 1}

    layers: tuple[int, ...] = (4, 5, 6)
    temperature: float = Field(default=0.05, gt=0)

    def bare_blocks(self, setting: Setting) -> tuple[int, ...]:
        """Return the mixed blocks."""
        return self.layers

    def sent(self) -> tuple[str, ...]:
        """Return the trained tensors and the prototypes."""
        return (*self.shared(), "prototypes", "has_prototype")

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return cue's tensors and class prompts ``[C, d]``."""
        rows = initial_prompts("class_prompts", setting.classes, setting, seed)
        return {**super().initial(setting, seed), "class_prompts": rows}

    def warm_up(self, visit: Visit) -> Update | None:
        """Send class sums of the bare cls tokens at the mixed blocks, too."""
        reply, bare = super().warm_up(visit), visit.centroids(lambda batch: batch.bare_cls, "count")
        assert reply is not None
        sums = torch.cat([reply.tensors["centroids"], bare["centroids"]])
        return replace(reply, tensors={**reply.tensors, "centroids": sums})

    def start(
        self, setting: Setting, seed: int, replies: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """Make the head of the final block's class means, prototypes of the others'."""
        sums = combine(replies)
        state = super().start(setting, seed, (), lambda *_: sums)
        first = first_prototypes(sums.total("centroids")[1:], sums.total("holds"))
        kept = {name: first[name] for name in ("prototypes", "has_prototype")}
        return ServerState(0, {**state.tensors, **kept})

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Give the mixed difference a slot of its own from the first mixed block on, before cue's prompt.

        It is renewed at the mixed blocks and flows on; in the first of them cue's prompt does, too.
        """
        deep = super().prompter(model, tensors, batch)
        if "class_prompts" not in tensors:  # the warm-up
            return deep

        def mix(block: int, cls: Tensor) -> Tensor:
            position, known = self.layers.index(block), tensors["has_prototype"]
            scores = class_scores(
                cls, tensors["prototypes"][position], known, batch.log_priors, self.temperature
            )
            return (cls + scores @ self.mixed_rows(tensors["class_prompts"], position))[:, None]

        def insert(block: int, tokens: Tensor) -> Insertion | None:
            base, first = deep(block, tokens), min(self.layers)
            if block < first:
                return base
            slot = mix(block, tokens[:, 0]) if block in self.layers else tokens[:, 1:2]
            if block == first or base is None:
                return Insertion(slot, overwrite=block > first)
            return Insertion(torch.cat([slot, base.tokens], 1), overwrite=True)

        return insert

    def mixed_rows(self, class_prompts: Tensor, position: int) -> Tensor:
        """Return the rows ``[C, d]`` of one mixed block: the same for all."""
        return class_prompts


class MixedByLayer(Mixed):
    """Class prompts of their own for each mixed block."""

    name: ClassVar[str] = "cue_mixed_by_layer"
    class_rows: ClassVar[dict[str, int]] = {**Mixed.class_rows, "class_prompts": 1}

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return cue's tensors and class prompts ``[L, C, d]``."""
        blocks = len(self.layers)
        rows = initial_prompts("class_prompts", blocks * setting.classes, setting, seed)
        return {**super().initial(setting, seed), "class_prompts": rows.view(blocks, setting.classes, -1)}

    def mixed_rows(self, class_prompts: Tensor, position: int) -> Tensor:
        """Return the block's own rows ``[C, d]``."""
        return class_prompts[position]


class Tied(Cue):
    """A head that is never trained, but made anew from the prototypes of the last rounds."""

    name: ClassVar[str] = "cue_tied"
    class_rows: ClassVar[dict[str, int]] = {"head": 0, "head_bias": 0}

    period: int = Field(default=5, ge=1)
    momentum: float = Field(default=0.5, ge=0, le=1)

    def returned(self) -> tuple[str, ...]:
        """Return the trained tensors and class sums."""
        return (*self.shared(), "centroids", "holds")

    def start(
        self, setting: Setting, seed: int, replies: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """Keep prototypes and the whitening beside the head."""
        sums = combine(replies)
        state = super().start(setting, seed, (), lambda *_: sums)
        first = first_prototypes(sums.total("centroids"), sums.total("holds"))
        transform = whitening(sums.total("moments"), first["prototypes"][0], sums.total("holds"))
        return ServerState(0, {**state.tensors, **first, "transform": transform})

    def update(self, visit: Visit, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train the prompts (``training.head_lr=0``) and send class sums under those received."""
        reply = visit.final_sums(lambda batch: self.prompter(visit.model, download.tensors, batch), False)
        update, memory = super().update(visit, download, memory)
        return replace(update, tensors={**update.tensors, **reply}), memory

    def aggregate(
        self, state: ServerState, updates: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """Average prompts; every ``period`` rounds move the prototypes and make a head of them."""
        sums = combine(updates, self.weighting, plain=("centroids", "holds"))
        tensors = {**state.tensors, "prompts": sums.mean("prompts")}
        tensors["centroid_sums"] = tensors["centroid_sums"] + sums.total("centroids")
        tensors["centroid_weights"] = tensors["centroid_weights"] + sums.total("holds")
        if (state.round + 1) % self.period == 0:
            tensors |= move_prototypes(tensors, self.momentum)
            prototypes, known = tensors["prototypes"][0], tensors["has_prototype"]
            tensors |= prototype_head(prototypes, known, self.scale, tensors["transform"])
        return ServerState(state.round + 1, tensors)


class Momentum(Cue):
    """Server momentum: the model moves on in the direction of the last rounds."""

    name: ClassVar[str] = "cue_momentum"

    server_momentum: float = Field(default=0.5, ge=0, lt=1)

    def aggregate(
        self, state: ServerState, updates: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """FedAvgM: the round's mean change plus a share of the last step."""
        after = super().aggregate(state, updates, combine)
        tensors = dict(after.tensors)
        for name in self.shared():
            old = state.tensors[name]
            last = state.tensors.get(f"last_{name}", torch.zeros_like(old))
            tensors[f"last_{name}"] = after.tensors[name] - old + self.server_momentum * last
            tensors[name] = old + tensors[f"last_{name}"]
        return ServerState(after.round, tensors)


class Scaled(Cue):
    """A learned temperature: all logits times a factor that is trained with the prompts' rate."""

    name: ClassVar[str] = "cue_scaled"
    prompt_names: ClassVar[tuple[str, ...]] = ("prompts", "log_scale")

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return cue's tensors and the factor's logarithm."""
        return {**super().initial(setting, seed), "log_scale": torch.zeros(1)}

    def logits(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Tensor:
        """Return the scaled logits; in the rate of the prompts a small step."""
        features = model.features(batch.inputs, self.prompter(model, tensors, batch))[:, 0]
        return classify(tensors, features) * torch.exp(0.01 * tensors["log_scale"])
