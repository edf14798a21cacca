"""PEP-FedPT: shared prompts, and class prompts mixed for each image by prototypes and priors.

Blocks are counted from 0 here: the paper's layers 5, 6, 7 are blocks 4, 5, 6. Ablations, and
what figures show, are in ``pep_variants``.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

import fedcue.methods as fm


class PEP(fm.Method):
    """Prompt estimation from prototypes: per-image prompts from global parameters only."""

    name: ClassVar[str] = "pep"

    prompts: int = fm.Field(default=1, ge=1, le=10_000, description="shared prompts at block 0 (n_S)")
    layers: fm.Blocks = fm.Field(default=(4, 5, 6), description="blocks with a mixed prompt, from 0")
    temperature: float = fm.Field(default=0.05, gt=0, description="of the class scores (tau)")
    period: int = fm.Field(default=10, ge=1, description="rounds between prototype updates (R)")
    momentum: float = fm.Field(default=0.5, ge=0, le=1, description="of the prototypes (rho)")

    def check(self, sizes: fm.Sizes) -> None:
        """Refuse mixed prompts beyond the last block."""
        fm.check_layers(self.layers, sizes)

    def bare_blocks(self, sizes: fm.Sizes) -> tuple[int, ...]:
        """Return the mixed blocks: the warm start needs cls there."""
        return self.layers

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare H, P_S, P_C (one set for all mixed blocks), the prototypes and the clients' centroids."""
        classes, mixed = (sizes.classes,), (len(self.layers), sizes.classes, sizes.width)
        return [
            *super().tensors(sizes),
            fm.prompt("shared_prompts", (self.prompts, sizes.width), sizes),
            fm.prompt("class_prompts", (sizes.classes, sizes.width), sizes, rows=0),
            fm.statistic("prototypes", mixed, rows=1, seldom=True),
            fm.statistic("has_prototype", classes, rows=0, seldom=True, dtype=torch.bool),
            fm.reply("centroids", mixed, "class_sums", rows=1, returned=True),
            fm.reply("holds", classes, "class_counts", rows=0, returned=True, dtype=torch.bool),
            fm.server("centroid_sums", mixed, fm.zeros),
            fm.server("centroid_weights", classes, fm.zeros),
        ]

    # At the server: the main loop of the paper's Algorithm 2

    def start(self, sizes: fm.Sizes, seed: int, sums: fm.Sums) -> fm.ServerState:
        """Make the first prototypes of the bare ViT's centroids (``eq:init_centroid_eq``).

        The paper divides by all clients asked; here a class's mean is that of its holders.
        """
        tensors = collect_centroids(self.table(sizes).first(seed), sums)
        return fm.ServerState(0, move_prototypes(tensors, self.momentum))

    def aggregate(self, state: fm.ServerState, sums: fm.Sums) -> fm.ServerState:
        """FedAvg; collect centroids; after every R rounds move the prototypes."""
        tensors = collect_centroids({**state.tensors, **sums.means()}, sums)
        if (state.round + 1) % self.period == 0:
            tensors = move_prototypes(tensors, self.momentum)
        return fm.ServerState(state.round + 1, tensors)

    # At the client: WarmStartUp and LocalTrain of Algorithm 2

    def warm_up(self, client: fm.Client) -> fm.Tensors:
        """Send the class centroids of the bare ViT (``eq:centroid_eq_client``)."""
        return client.centroids(lambda batch: batch.bare_cls)

    def personal(self, client: fm.Client, sent: fm.Tensors) -> fm.Tensors:
        """Keep the rows of the classes with a prior: the weight of all others is exactly zero."""
        return client.own_rows(sent)

    def reply(self, client: fm.Client, sent: fm.Tensors, trained: fm.Tensors, loss: float) -> fm.Update:
        """Send the trained H, P_S and P_C, and the centroids under the broadcast state."""
        broadcast = self.personal(client.described(), sent)
        told = fm.Prototypes(sent["prototypes"], sent["has_prototype"])
        centroids = client.centroids(lambda batch: self.cls_tokens(broadcast, batch), told)
        return client.update({**client.all_rows(trained, sent), **centroids}, loss)

    # On both sides: PromptMixing of Algorithm 2

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert P_S at block 0 and m at the mixed blocks, in one slot."""
        return fm.mixed(tensors["shared_prompts"], self.layers, partial(self.mixed_prompt, tensors, batch))

    def mixed_prompt(self, tensors: fm.Tensors, batch: fm.Batch, position: int, cls: Tensor) -> Tensor:
        """Return m = s P_C ``[B, d]`` (``eq:pr_mix``)."""
        return self.scores(tensors, batch, position, cls) @ tensors["class_prompts"]

    def scores(self, tensors: fm.Tensors, batch: fm.Batch, position: int, cls: Tensor) -> Tensor:
        """Return s ``[B, classes held]`` at the mixed block ``position`` (``final_mixing``)."""
        prototypes, log_priors = tensors["prototypes"][position], batch.log_priors[..., tensors["classes"]]
        return class_scores(cls, prototypes, tensors["has_prototype"], log_priors, self.temperature)

    def cls_tokens(self, tensors: fm.Tensors, batch: fm.Batch) -> Tensor:
        """Return cls at the input of each mixed block ``[B, L, d]``."""
        return batch.cls_tokens(self.prompter(tensors, batch), self.layers)


def class_scores(
    cls: Tensor, prototypes: Tensor, known: Tensor, log_priors: Tensor, temperature: float
) -> Tensor:
    """Return each image's class membership scores (``exp_similarity``, ``final_mixing``).

    ``cls [B, d], prototypes [C, d], known [C], log_priors [C] or [B, C] -> [B, C]``. A class that has
    no prototype yet takes the mean similarity of the client's classes that have one. In log space and
    at least float32: finite for any temperature.
    """
    similarity = fm.cosines(cls, prototypes)  # [B, C]
    owned = (known & (log_priors > -torch.inf)).to(similarity.dtype).expand_as(similarity)
    average = (similarity * owned).sum(1, keepdim=True) / owned.sum(1, keepdim=True).clamp(min=1)
    similarity = torch.where(known, similarity, average)
    return torch.softmax(similarity / temperature + log_priors, 1)


def collect_centroids(tensors: fm.Tensors, sums: fm.Sums) -> dict[str, Tensor]:
    """Add the clients' centroids, and how many there are of each class, to those of the period."""
    found = {"centroid_sums": sums.total("centroids"), "centroid_weights": sums.total("holds")}
    return {**tensors, **{name: tensors[name] + found[name] for name in found}}


def move_prototypes(tensors: fm.Tensors, momentum: float) -> dict[str, Tensor]:
    """Move the prototypes towards the period's mean centroids (``eq:centroid_eq``, ``eq:mometum_update``).

    A class nobody sent keeps its prototype; one that had none takes the mean as it is.
    """
    total, weight = tensors["centroid_sums"], tensors["centroid_weights"]
    old, known, seen = tensors["prototypes"], tensors["has_prototype"], weight > 0
    mean = total / weight.clamp(min=1)[:, None]  # [L, C, d]
    moved = torch.where(known[:, None], momentum * old + (1 - momentum) * mean, mean)
    return {
        **tensors,
        "prototypes": torch.where(seen[:, None], moved, old),
        "has_prototype": known | seen,
        "centroid_sums": torch.zeros_like(total),
        "centroid_weights": torch.zeros_like(weight),
    }
