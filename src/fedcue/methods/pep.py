"""PEP-FedPT: shared prompts, and class prompts mixed for each image by prototypes and priors.

Blocks are counted from 0 here: the paper's layers 5, 6, 7 are blocks 4, 5, 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedcue.aggregate.mean import Combine, sum_updates
from fedcue.aggregate.prototypes import first_prototypes, move_prototypes
from fedcue.errors import ConfigError
from fedcue.methods.base import Method, Visit, initial_prompts
from fedcue.model.prompted import PromptedViT, Prompter, no_prompts
from fedcue.model.prompts import class_scores, mixed, shallow
from fedcue.train.samples import Batch
from fedcue.types import ClientMemory, Download, Kind, ServerState, Setting, Tensors, Update

ROWS = {"class_prompts": 0, "prototypes": 1, "has_prototype": 0}
"""Tensors of which a client uses its own classes' rows, and their class axis."""
CENTROIDS = {"centroids": 1, "holds": 0}
"""What a client tells of its classes, likewise."""


class PEP(Method):
    """Prompt estimation from prototypes: per-image prompts from global parameters only."""

    name: ClassVar[str] = "pep"
    class_rows: ClassVar[dict[str, int]] = ROWS | CENTROIDS
    periodic: ClassVar[tuple[str, ...]] = ("prototypes", "has_prototype")

    prompts: int = Field(default=1, ge=0, le=10_000, description="number of shared prompts at block 0")
    prompt_init: Literal["vpt", "zeros"] = "vpt"
    layers: tuple[int, ...] = Field(
        default=(4, 5, 6), description="blocks with a mixed prompt, counted from 0; [] is FedVPT"
    )
    ccmp_mode: Literal["replace", "accumulate"] = "replace"
    temperature: float = Field(default=0.05, gt=0)
    prior: Literal["client", "uniform"] = Field(default="client", description="uniform: without class priors")
    score_source: Literal["prompted", "bare"] = "prompted"
    detach_scores: bool = False
    zero_prototype: Literal["neutral", "zero"] = "neutral"
    period: int = Field(default=10, ge=1, description="rounds between prototype updates (R)")
    momentum: float = Field(default=0.5, ge=0, le=1, description="of the prototypes (rho)")
    initial_mean: Literal["nonzero", "literal"] = "nonzero"
    prototype_weight: Literal["uniform", "count"] = "uniform"

    @field_validator("layers")
    @classmethod
    def _ascending(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if min(layers, default=0) < 0 or list(layers) != sorted(set(layers)):
            raise ValueError("must be ascending block indices from 0, such as [4, 5, 6]")
        return layers

    def check(self, setting: Setting) -> None:
        """Refuse mixed prompts beyond the last block."""
        if max(self.layers, default=0) >= setting.depth:
            raise ConfigError(
                f"method.layers={list(self.layers)} reach beyond the backbone, whose blocks are "
                f"0 to {setting.depth - 1}. Give smaller indices."
            )

    def first_block(self, setting: Setting) -> int:
        """Return block 0, or without shared prompts the first mixed block."""
        return 0 if self.prompts else min(self.layers, default=setting.depth)

    def bare_blocks(self, setting: Setting) -> tuple[int, ...]:
        """Return the mixed blocks: the warm start needs cls there."""
        return self.layers

    def shared(self) -> tuple[str, ...]:
        """Return the names of H, P_S and P_C, as far as they are there."""
        prompts = ("shared_prompts",) * (self.prompts > 0) + ("class_prompts",) * bool(self.layers)
        return (*super().shared(), *prompts)

    def sent(self) -> tuple[str, ...]:
        """Return the trained tensors, the prototypes and which classes have one."""
        return (*self.shared(), *("prototypes", "has_prototype") * bool(self.layers))

    def returned(self) -> tuple[str, ...]:
        """Return the trained tensors, the client's centroids and which classes have one."""
        return (*self.shared(), *tuple(CENTROIDS) * bool(self.layers))

    def replied(self) -> tuple[str, ...]:
        """Return the centroids and which classes have one."""
        return tuple(CENTROIDS) * bool(self.layers)

    def kinds(self) -> dict[str, Kind]:
        """Declare the centroids beside the trained tensors."""
        centroids: dict[str, Kind] = {"centroids": "class_sums", "holds": "class_counts"}
        return {**super().kinds(), **(centroids if self.layers else {})}

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return H, P_S ``[n, d]`` and P_C ``[C, d]``: one set for all mixed blocks."""
        counts = {"shared_prompts": self.prompts, "class_prompts": setting.classes}
        return super().initial(setting, seed) | {
            name: initial_prompts(name, count, setting, seed, self.prompt_init)
            for name, count in counts.items()
            if name in self.shared()
        }

    def start(
        self, setting: Setting, seed: int, replies: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """Average the bare ViT's centroids into the first prototypes."""
        tensors = self.initial(setting, seed)
        if self.layers:
            sums = combine(replies)
            weight = sums.total("holds")
            everyone = torch.full_like(weight, sums.updates) if self.initial_mean == "literal" else None
            tensors |= first_prototypes(sums.total("centroids"), weight, everyone)
        return ServerState(0, tensors)

    def aggregate(
        self, state: ServerState, updates: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """FedAvg; collect centroids; after every R rounds move the prototypes (``eq:centroid_eq``)."""
        sums = combine(updates, self.weighting, plain=tuple(CENTROIDS))
        tensors = {**state.tensors, **{name: sums.mean(name) for name in self.shared()}}
        if self.layers:
            tensors["centroid_sums"] = tensors["centroid_sums"] + sums.total("centroids")
            tensors["centroid_weights"] = tensors["centroid_weights"] + sums.total("holds")
            if (state.round + 1) % self.period == 0:
                tensors |= move_prototypes(tensors, self.momentum)
        return ServerState(state.round + 1, tensors)

    def warm_up(self, visit: Visit) -> Update | None:
        """Send the class centroids of the bare ViT."""
        if not self.layers:
            return None
        reply = visit.centroids(lambda batch: batch.bare_cls, self.prototype_weight)
        return Update(visit.client, len(visit.samples), reply)

    def personalize(
        self, model: PromptedViT, download: Download, log_priors: Tensor, memory: ClientMemory
    ) -> Tensors:
        """Keep the rows of the classes with a prior: the weight of all others is exactly zero."""
        if not self.layers:
            return download.tensors
        held = (self._priors(log_priors) > -torch.inf).view(-1, log_priors.shape[-1]).any(0).nonzero()[:, 0]
        kept = {name: download.tensors[name].index_select(axis, held) for name, axis in ROWS.items()}
        return {**download.tensors, **kept, "classes": held}

    def update(self, visit: Visit, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Take the centroids under the broadcast state, then train H, P_S and P_C."""
        if not self.layers:
            return super().update(visit, download, memory)
        described = self.personalize(visit.model, download, visit.described.log_priors, memory)
        cls_tokens = partial(self._cls_tokens, visit.model, described)
        reply = visit.centroids(cls_tokens, self.prototype_weight)
        tensors = self.personalize(visit.model, download, visit.samples.log_priors, memory)
        start = {name: tensors[name] for name in self.shared()}
        trained, loss = visit.fit(self.loss(visit.model, tensors), start, download.round)
        rows, prompts = trained["class_prompts"], download.tensors["class_prompts"]
        trained["class_prompts"] = prompts.index_copy(0, tensors["classes"], rows)
        return Update(visit.client, len(visit.samples), {**trained, **reply}, loss), memory

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Insert P_S at block 0 and m = s P_C at the mixed blocks (``eq:pr_mix``)."""
        first = shallow(tensors["shared_prompts"]) if self.prompts else no_prompts

        def mix(position: int, cls: Tensor) -> Tensor:
            return self._scores(tensors, batch, position, cls) @ tensors["class_prompts"]

        return mixed(first, self.layers, mix, replace=self.ccmp_mode == "replace")

    def inspect(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> dict[str, Tensor]:
        """Return the mixing weights ``[B, L, C]``."""
        if not self.layers:
            return {}
        cls = self._cls_tokens(model, tensors, batch)
        scores = torch.stack([self._scores(tensors, batch, i, cls[:, i]) for i in range(len(self.layers))], 1)
        everywhere = scores.new_zeros(*scores.shape[:2], batch.log_priors.shape[-1])
        return {"mixing_weights": everywhere.index_copy(2, tensors["classes"], scores)}

    def _priors(self, log_priors: Tensor) -> Tensor:
        classes = log_priors.shape[-1]
        return log_priors if self.prior == "client" else torch.full_like(log_priors, -math.log(classes))

    def _scores(self, tensors: Tensors, batch: Batch, position: int, cls: Tensor) -> Tensor:
        """Return s ``[B, classes held]`` at the mixed block ``position`` (``final_mixing``)."""
        scores = class_scores(
            batch.bare_cls[:, position] if self.score_source == "bare" else cls,
            tensors["prototypes"][position],
            tensors["has_prototype"],
            self._priors(batch.log_priors)[..., tensors["classes"]],
            self.temperature,
            self.zero_prototype == "neutral",
        )
        return scores.detach() if self.detach_scores else scores

    def _cls_tokens(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Tensor:
        return model.cls_tokens(batch.inputs, self.prompter(model, tensors, batch), self.layers)
