"""PEP-FedPT: shared prompts, and class prompts mixed for each image by prototypes and priors.

Blocks are counted from 0 here: the paper's layers 5, 6, 7 are blocks 4, 5, 6. What only an ablation
changes is in ``pep_variants``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
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
            fm.server("centroid_sums", mixed),
            fm.server("centroid_weights", classes),
        ]

    # At the server: the main loop of the paper's Algorithm 2

    def start(self, sizes: fm.Sizes, seed: int, sums: fm.Sums) -> fm.ServerState:
        """Average the bare ViT's centroids into the first prototypes (``eq:init_centroid_eq``).

        The paper divides by all clients asked; here a class's mean is that of its holders.
        """
        first = self.table(sizes).first(seed)
        return fm.ServerState(0, first | mean_centroids(sums.total("centroids"), sums.total("holds")))

    def aggregate(self, state: fm.ServerState, sums: fm.Sums) -> fm.ServerState:
        """FedAvg; collect centroids; after every R rounds move the prototypes (``eq:centroid_eq``)."""
        tensors = {**state.tensors, **sums.means()}
        tensors["centroid_sums"] = tensors["centroid_sums"] + sums.total("centroids")
        tensors["centroid_weights"] = tensors["centroid_weights"] + sums.total("holds")
        if (state.round + 1) % self.period == 0:
            tensors |= move_prototypes(tensors, self.momentum)
        return fm.ServerState(state.round + 1, tensors)

    # At the client: WarmStartUp and LocalTrain of Algorithm 2

    def warm_up(self, client: fm.Client) -> fm.Tensors:
        """Send the class centroids of the bare ViT (``eq:centroid_eq_client``)."""
        return client.centroids(lambda batch: batch.bare_cls)

    def personal(self, client: fm.Client, sent: fm.Tensors) -> fm.Tensors:
        """Keep the rows of the classes with a prior: the weight of all others is exactly zero."""
        held = client.held_classes()
        return {**fm.take_rows(sent, client.table.class_axes, held), "classes": held}

    def reply(self, client: fm.Client, sent: fm.Tensors, trained: fm.Tensors, loss: float) -> fm.Update:
        """Send the trained H, P_S and P_C, and the centroids under the broadcast state."""
        broadcast = self.personal(client.described(), sent)
        told = fm.Prototypes(sent["prototypes"], sent["has_prototype"])
        centroids = client.centroids(lambda batch: self.cls_tokens(broadcast, batch), told)
        held = self.personal(client, sent)["classes"]
        whole = fm.put_rows(trained, client.table.class_axes, held, sent)
        return client.update({**whole, **centroids}, loss)

    # On both sides: PromptMixing of Algorithm 2

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert P_S at block 0 and m = s P_C at the mixed blocks, in one slot (``eq:pr_mix``)."""
        shared = tensors["shared_prompts"]

        def insert(block: int, tokens: Tensor) -> fm.Insertion | None:
            if block not in self.layers:
                return fm.Insertion(shared) if block == 0 else None
            position = self.layers.index(block)
            mixed = self.scores(tensors, batch, position, tokens[:, 0]) @ tensors["class_prompts"]
            slot = mixed[:, None]  # [B, 1, d]
            if block == 0:
                slot = torch.cat([slot, shared.expand(slot.shape[0], -1, -1)], 1)
            return fm.Insertion(slot, overwrite=self.overwrites(position))

        return insert

    def overwrites(self, position: int) -> bool:
        """Tell whether the mixed prompt takes the slot of the one before it."""
        return position > 0

    def scores(self, tensors: fm.Tensors, batch: fm.Batch, position: int, cls: Tensor) -> Tensor:
        """Return s ``[B, classes held]`` at the mixed block ``position`` (``final_mixing``)."""
        log_priors = batch.log_priors[..., tensors["classes"]]
        prototypes, known = tensors["prototypes"][position], tensors["has_prototype"]
        return class_scores(cls, prototypes, known, log_priors, self.temperature)

    def cls_tokens(self, tensors: fm.Tensors, batch: fm.Batch) -> Tensor:
        """Return cls at the input of each mixed block ``[B, L, d]``."""
        return batch.cls_tokens(self.prompter(tensors, batch), self.layers)

    def inspect(self, tensors: fm.Tensors, batch: fm.Batch) -> dict[str, Tensor]:
        """Return the mixing weights ``[B, L, C]``."""
        cls = self.cls_tokens(tensors, batch)
        scores = torch.stack([self.scores(tensors, batch, i, cls[:, i]) for i in range(len(self.layers))], 1)
        everywhere = scores.new_zeros(*scores.shape[:2], batch.log_priors.shape[-1])
        return {"mixing_weights": everywhere.index_copy(2, tensors["classes"], scores)}


def class_scores(
    cls: Tensor, prototypes: Tensor, known: Tensor, log_priors: Tensor, temperature: float
) -> Tensor:
    """Return each image's class membership scores (``exp_similarity``, ``final_mixing``).

    ``cls [B, d], prototypes [C, d], known [C], log_priors [C] or [B, C] -> [B, C]``. A class that has
    no prototype yet takes the mean similarity of the client's classes that have one. In log space and
    at least float32: finite for any temperature.
    """
    similarity = cosines(cls, prototypes)  # [B, C]
    owned = (known & (log_priors > -torch.inf)).to(similarity.dtype).expand_as(similarity)
    average = (similarity * owned).sum(-1, keepdim=True) / owned.sum(-1, keepdim=True).clamp(min=1)
    similarity = torch.where(known, similarity, average)
    return torch.softmax(similarity / temperature + log_priors, -1)


def cosines(cls: Tensor, prototypes: Tensor) -> Tensor:
    """Return the cosines ``[B, C]`` of ``cls [B, d]`` and ``prototypes [C, d]``, at least in float32."""
    precise = torch.promote_types(cls.dtype, torch.float32)
    return F.normalize(cls.to(precise), dim=-1) @ F.normalize(prototypes.to(precise), dim=-1).T


def mean_centroids(total: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Return prototypes, the means of summed centroids (``eq:centroid_eq``), and empty sums.

    ``total [L, C, d], weight [C]``: the sums, and how many centroids of each class are in them.
    """
    return {
        "prototypes": total / weight.clamp(min=1)[:, None],
        "has_prototype": weight > 0,
        "centroid_sums": torch.zeros_like(total),
        "centroid_weights": torch.zeros_like(weight),
    }


def move_prototypes(tensors: fm.Tensors, momentum: float) -> dict[str, Tensor]:
    """Move the prototypes towards the period's mean centroids (``eq:mometum_update``).

    A class nobody sent keeps its prototype; one that had none takes the mean as it is.
    """
    recent = mean_centroids(tensors["centroid_sums"], tensors["centroid_weights"])
    old, known, seen = tensors["prototypes"], tensors["has_prototype"], recent["has_prototype"]
    new = recent["prototypes"]
    moved = torch.where(known[:, None], momentum * old + (1 - momentum) * new, new)
    kept = torch.where(seen[:, None], moved, old)
    return {**recent, "prototypes": kept, "has_prototype": known | seen}
