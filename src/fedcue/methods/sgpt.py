"""SGPT: shared prompts in the early blocks, then group prompts chosen for each image by keys."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

import fedcue.methods as fm

RARE = 50
"""A group chosen at most so often in a round takes the plain mean of the clients' keys."""


class SGPT(fm.Method):
    """Two stages per visit: shared prompts and head, then group prompts, keys and head."""

    name: ClassVar[str] = "sgpt"
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": fm.PAPER,
        "native": {
            **fm.STEADY,
            "method.head_bias": True,
            "method.weighting": "size",
            "training.lr": 0.01,
            "training.weight_decay": 1e-5,
            "training.batch_size": 40,
        },
    }

    groups: int = fm.Field(default=20, ge=1, le=10_000, description="number of groups (K)")
    shared_blocks: int = fm.Field(default=4, ge=1, description="first blocks, with shared prompts")
    group_blocks: int = fm.Field(default=3, ge=1, description="next blocks, with group prompts")
    prompts: int = fm.Field(default=1, ge=1, le=10_000, description="number of shared prompts at block 0")
    prompt_init: fm.PromptInit = fm.Field(default="zeros", description="of the shared prompts")
    query_block: int | None = fm.Field(
        default=None, ge=1, description="block at whose input cls is the query (default: the output)"
    )
    batch_majority: bool = fm.Field(default=False, description="each batch trains its most frequent group")
    momentum: float = fm.Field(default=0.5, ge=0, lt=1, description="of the group prompts at the server")
    key_momentum: float = fm.Field(default=0.5, ge=0, lt=1, description="of the keys at the server")

    def check(self, sizes: fm.Sizes) -> None:
        """Refuse blocks beyond the last one, and more keys than can be orthogonal."""
        last = max(self.shared_blocks + self.group_blocks, *self.bare_blocks(sizes))
        if last > sizes.depth or self.groups > sizes.width:
            raise fm.ConfigError(
                f"SGPT needs {last} blocks and width {self.groups} or more; the backbone has {sizes.depth} "
                f"and {sizes.width}. Lower method.shared_blocks, group_blocks, query_block or groups."
            )

    def bare_blocks(self, sizes: fm.Sizes) -> tuple[int, ...]:
        """Return where the query is taken from the bare backbone."""
        return (self.query_block or sizes.depth,)

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare head, shared prompts ``[n, d]``, group prompts ``[blocks, K, d]``, keys and counts."""
        shared = (self.prompts + self.shared_blocks - 1, sizes.width)
        grouped, keys = (self.group_blocks, self.groups, sizes.width), (self.groups, sizes.width)
        counts = fm.statistic("counts", (self.groups,), dtype=torch.int64)
        return [
            *super().tensors(sizes),
            fm.prompt("shared_prompts", shared, sizes, self.prompt_init),
            fm.prompt("group_prompts", grouped, sizes),
            replace(fm.trained("keys", keys, first_keys), weighted=False),
            replace(counts, returned=True, weighted=False),
        ]

    def added(self, update: fm.Update) -> fm.Update:
        """Add to an update its keys times the client's choices, whose sum the server needs."""
        counted = update.tensors["keys"] * update.tensors["counts"][:, None]
        return replace(update, tensors={**update.tensors, "counted_keys": counted})

    def aggregate(self, state: fm.ServerState, sums: fm.Sums) -> fm.ServerState:
        """Average; move groups and keys with momentum; add up the counts."""
        old, new = state.tensors, sums.means()
        new["group_prompts"] = torch.lerp(new["group_prompts"], old["group_prompts"], self.momentum)
        new["keys"] = torch.lerp(_mean_keys(sums), old["keys"], self.key_momentum)
        new["counts"] = old["counts"] + sums.tensors["counts"].to(torch.int64)
        return fm.ServerState(state.round + 1, {**old, **new})

    def update(self, client: fm.Client, sent: fm.Tensors) -> fm.Update:
        """Train without groups, then the groups behind the new shared prompts, each with its optimiser.

        The loss reported is the first stage's: the second one's also holds the key term.
        """
        counts = torch.zeros_like(sent["counts"])
        head = [name for name in ("head", "head_bias") if name in sent]
        first, loss = client.fit(self._shared_loss(), {n: sent[n] for n in (*head, "shared_prompts")})
        tensors = {**sent, **first}
        start = {name: tensors[name] for name in (*head, "group_prompts", "keys")}
        second, _ = client.fit(self._group_loss(tensors, counts), start)
        return client.update({**first, **second, "counts": counts}, loss)

    def logits(self, tensors: fm.Tensors, batch: fm.Batch) -> Tensor:
        """Classify with the group whose key is nearest, whatever the client and the counts."""
        return self._logits(tensors, batch, self._nearest(tensors, batch))

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert the shared prompts and those of the nearest group; they accumulate."""
        return fm.inserted(self._tokens(tensors, self._nearest(tensors, batch)))

    def inspect(self, tensors: fm.Tensors, batch: fm.Batch) -> dict[str, Tensor]:
        """Return which group each image takes, one-hot ``[B, K]``."""
        return {"groups": F.one_hot(self._nearest(tensors, batch), self.groups).float()}

    def _nearest(self, tensors: fm.Tensors, batch: fm.Batch) -> Tensor:
        return self._similarity(tensors["keys"], batch).argmax(1)

    def _similarity(self, keys: Tensor, batch: fm.Batch) -> Tensor:
        """Return the cosines ``[B, K]`` of the images' queries, from the bare backbone, and the keys."""
        return fm.cosines(F.relu(batch.normalised(batch.bare_cls.squeeze(1))), keys)

    def _tokens(self, tensors: fm.Tensors, groups: Tensor | None) -> dict[int, Tensor]:
        """Return by block the shared prompts and those of each image's group, if groups are on."""
        sizes = [self.prompts, *[1] * (self.shared_blocks - 1)]
        tokens = dict(enumerate(torch.split(tensors["shared_prompts"], sizes)))
        if groups is not None:
            for block, prompts in enumerate(tensors["group_prompts"], self.shared_blocks):
                tokens[block] = prompts[groups, None]  # [B, 1, d]
        return tokens

    def _logits(self, tensors: fm.Tensors, batch: fm.Batch, groups: Tensor | None) -> Tensor:
        """Classify cls or, if groups are on, the mean of cls and the group tokens right behind it."""
        read = 1 if groups is None else 1 + self.group_blocks
        features = batch.features(fm.inserted(self._tokens(tensors, groups)), read)
        return fm.classify(tensors, features.mean(1))

    def _shared_loss(self) -> fm.Loss:
        return lambda trained, batch: self.cross_entropy(self._logits(trained, batch, None), batch)

    def _group_loss(self, fixed: fm.Tensors, counts: Tensor) -> fm.Loss:
        """Cross-entropy minus the chosen keys' cosine; ``counts`` takes note of the choices.

        Rarely used groups seem nearer: distances are weighed by the groups' past use, which stays
        as it was sent for the whole round.
        """
        used = fixed["counts"].double()
        scale = (used / used.sum() + 5e-4 if used.any() else torch.ones_like(used)).float()

        def of_batch(trained: fm.Tensors, batch: fm.Batch) -> Tensor:
            similarity = self._similarity(trained["keys"], batch)
            chosen = ((1 - similarity.detach()) * scale).argmin(1)
            if self.batch_majority:
                chosen = torch.full_like(chosen, int(torch.bincount(chosen).argmax()))
            counts.add_(torch.bincount(chosen, minlength=self.groups))
            logits = self._logits({**fixed, **trained}, batch, chosen)
            return self.cross_entropy(logits, batch) - similarity.gather(1, chosen[:, None]).mean()

        return of_batch


def first_keys(shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw keys ``[K, d]`` within Xavier's bound and make them orthonormal in their order (Gram-Schmidt)."""
    bound = math.sqrt(6 / sum(shape))
    rows = fm.uniform("keys", bound)(shape, seed)
    q, r = torch.linalg.qr(rows.double().T)
    signed: Tensor = q * r.diagonal().sign()
    return signed.T.float().contiguous()


def _mean_keys(sums: fm.Sums) -> Tensor:
    """Return the mean of the clients' keys ``[K, d]``, each weighed by its choices."""
    counts = sums.tensors["counts"][:, None]
    by_choice = sums.tensors["counted_keys"] / counts
    return torch.where(counts > RARE, by_choice, sums.tensors["keys"] / sums.updates).float()
