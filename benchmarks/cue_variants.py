"""Variants of cue that were tried and are not part of it (docs/cue.md has what came of them).

Run with ``PYTHONPATH=benchmarks`` and ``--methods cue,cue_variants:Mixed``, say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

import fedcue.methods as fm
from fedcue.aggregate.closed_form import (
    class_means,
    covariance,
    head_of_means,
    prototype_head,
    ridge_head,
    whitening,
)
from fedcue.methods.cue import Cue
from fedcue.methods.pep import class_scores, collect_centroids, move_prototypes
from fedcue.methods.statistics_head import class_statistics
from fedcue.types import TensorTable


def first_prototypes(total: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Return the mean centroid of every class's holders, and which classes have one."""
    return {"prototypes": total / weight.clamp(min=1)[:, None], "has_prototype": weight > 0}


class Mixed(Cue):
    """PEP's class prompts on top: mixed by prototypes and priors, as differences from the cls token."""

    name: ClassVar[str] = "cue_mixed"

    layers: tuple[int, ...] = (4, 5, 6)
    temperature: float = fm.Field(default=0.05, gt=0)

    def bare_blocks(self, sizes: fm.Sizes) -> tuple[int, ...]:
        """Return the mixed blocks."""
        return self.layers

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare cue's tensors, class prompts ``[C, d]``, prototypes and class sums of the mixed blocks."""
        mixed = (len(self.layers), sizes.classes, sizes.width)
        specs = [self._with_mixed_blocks(spec) for spec in super().tensors(sizes)]
        return [
            *specs,
            self.class_prompts(sizes),
            fm.statistic("prototypes", mixed, rows=1),
            fm.statistic("has_prototype", (sizes.classes,), rows=0, dtype=torch.bool),
        ]

    def class_prompts(self, sizes: fm.Sizes) -> fm.TensorSpec:
        """Declare the class prompts: the same for all mixed blocks."""
        return fm.prompt("class_prompts", (sizes.classes, sizes.width), sizes, rows=0)

    def _with_mixed_blocks(self, spec: fm.TensorSpec) -> fm.TensorSpec:
        if spec.name != "centroids":
            return spec
        return replace(spec, shape=(1 + len(self.layers), *spec.shape[1:]))

    def warm_up(self, client: fm.Client) -> fm.Tensors:
        """Send class sums of the bare cls tokens at the mixed blocks, too."""
        cue = TensorTable(tuple(super().tensors(client.sizes)))
        reply = super().warm_up(replace(client, table=cue))
        bare = client.centroids(lambda batch: batch.bare_cls)
        return {**reply, "centroids": torch.cat([reply["centroids"], bare["centroids"]])}

    def start(self, sizes: fm.Sizes, seed: int, sums: fm.Sums) -> fm.ServerState:
        """Make the head of the final block's class means, prototypes of the others'."""
        kept = first_prototypes(sums.total("centroids")[1:], sums.total("holds"))
        final = replace(sums, tensors={**sums.tensors, "centroids": sums.tensors["centroids"][:1]})
        return fm.ServerState(0, {**super().start(sizes, seed, final).tensors, **kept})

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Give the mixed difference a slot of its own from the first mixed block on, before cue's prompt.

        It is renewed at the mixed blocks and flows on; in the first of them cue's prompt does, too.
        """
        deep = super().prompter(tensors, batch)
        if "prototypes" not in tensors:  # the warm-up
            return deep

        def mix(block: int, cls: Tensor) -> Tensor:
            position, known = self.layers.index(block), tensors["has_prototype"]
            scores = class_scores(
                cls, tensors["prototypes"][position], known, batch.log_priors, self.temperature
            )
            return (cls + scores @ self.mixed_rows(tensors["class_prompts"], position))[:, None]

        def insert(block: int, tokens: Tensor) -> fm.Insertion | None:
            base, first = cast("fm.Insertion | None", deep(block, tokens)), min(self.layers)
            if block < first:
                return base
            slot = mix(block, tokens[:, 0]) if block in self.layers else tokens[:, 1:2]
            if block == first or base is None:
                return fm.Insertion(slot, overwrite=block > first)
            return fm.Insertion(torch.cat([slot, base.tokens], 1), overwrite=True)

        return insert

    def mixed_rows(self, class_prompts: Tensor, position: int) -> Tensor:
        """Return the rows ``[C, d]`` of one mixed block: the same for all."""
        return class_prompts


class MixedByLayer(Mixed):
    """Class prompts of their own for each mixed block."""

    name: ClassVar[str] = "cue_mixed_by_layer"

    def class_prompts(self, sizes: fm.Sizes) -> fm.TensorSpec:
        """Declare the class prompts ``[L, C, d]``."""
        shape = (len(self.layers), sizes.classes, sizes.width)
        return fm.prompt("class_prompts", shape, sizes, rows=1)

    def mixed_rows(self, class_prompts: Tensor, position: int) -> Tensor:
        """Return the block's own rows ``[C, d]``."""
        return class_prompts[position]


class Tied(Cue):
    """A head that is never trained, but made anew from the prototypes of the last rounds."""

    name: ClassVar[str] = "cue_tied"

    period: int = fm.Field(default=5, ge=1)
    momentum: float = fm.Field(default=0.5, ge=0, le=1)

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare cue's tensors, with class sums after every visit, and what the server makes heads of."""
        mean, classes = (1, sizes.classes, sizes.width), (sizes.classes,)
        specs = [
            replace(s, returned=s.returned or s.name in ("centroids", "holds"))
            for s in super().tensors(sizes)
        ]
        return [
            *specs,
            fm.server("prototypes", mean),
            fm.server("has_prototype", classes, dtype=torch.bool),
            fm.server("centroid_sums", mean, fm.zeros),
            fm.server("centroid_weights", classes, fm.zeros),
            fm.server("transform", (sizes.width, sizes.width)),
        ]

    def start(self, sizes: fm.Sizes, seed: int, sums: fm.Sums) -> fm.ServerState:
        """Keep prototypes and the whitening beside the head."""
        first = first_prototypes(sums.total("centroids"), sums.total("holds"))
        means, counts = first["prototypes"][0], sums.total("holds")
        transform = whitening(covariance(sums.total("moments"), means, counts))
        return fm.ServerState(
            0, {**super().start(sizes, seed, sums).tensors, **first, "transform": transform}
        )

    def update(self, client: fm.Client, sent: fm.Tensors) -> fm.Update:
        """Train the prompts (``training.head_lr=0``) and send class sums under those received."""
        reply = client.centroids(lambda batch: self.vectors(sent, batch)[:, None])
        update = super().update(client, sent)
        return replace(update, tensors={**update.tensors, **reply})

    def aggregate(self, state: fm.ServerState, sums: fm.Sums) -> fm.ServerState:
        """Average prompts; every ``period`` rounds move the prototypes and make a head of them."""
        tensors = collect_centroids({**state.tensors, "prompts": sums.mean("prompts")}, sums)
        if (state.round + 1) % self.period == 0:
            tensors |= move_prototypes(tensors, self.momentum)
            prototypes, known = tensors["prototypes"][0], tensors["has_prototype"]
            tensors |= prototype_head(prototypes, known, self.scale, tensors["transform"])
        return fm.ServerState(state.round + 1, tensors)


class Momentum(Cue):
    """Server momentum: the model moves on in the direction of the last rounds."""

    name: ClassVar[str] = "cue_momentum"

    server_momentum: float = fm.Field(default=0.5, ge=0, lt=1)

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare cue's tensors and the last step of each that is averaged."""
        specs = super().tensors(sizes)
        last = [fm.server(f"last_{spec.name}", spec.shape, fm.zeros) for spec in specs if spec.trained]
        return [*specs, *last]

    def aggregate(self, state: fm.ServerState, sums: fm.Sums) -> fm.ServerState:
        """FedAvgM: the round's mean change plus a share of the last step."""
        tensors = dict(state.tensors)
        for name, mean in sums.means().items():
            old = state.tensors[name]
            step = mean - old + self.server_momentum * state.tensors[f"last_{name}"]
            tensors |= {name: old + step, f"last_{name}": step}
        return fm.ServerState(state.round + 1, tensors)


class Scaled(Cue):
    """A learned temperature: all logits times a factor that is trained with the prompts' rate."""

    name: ClassVar[str] = "cue_scaled"

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare cue's tensors and the factor's logarithm."""
        return [*super().tensors(sizes), fm.trained("log_scale", (1,), fm.zeros)]

    def logits(self, tensors: fm.Tensors, batch: fm.Batch) -> Tensor:
        """Return the scaled logits; in the rate of the prompts a small step."""
        features = batch.features(self.prompter(tensors, batch))[:, 0]
        return fm.classify(tensors, features) * torch.exp(0.01 * tensors["log_scale"])


class Started(Cue):
    """Another head in closed form to start from: ridge regression (Fed3R), or that of means (FedCOF)."""

    name: ClassVar[str] = "cue_started"

    by: Literal["fed3r", "fedcof"] = "fed3r"
    ridge: float = fm.Field(default=0.01, gt=0)
    shrinkage: float = fm.Field(default=1.0, ge=0)

    def replies(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare what the closed form needs: second moments, or every client's own class sums."""
        if self.by == "fedcof":
            return class_statistics(sizes, each=True)
        return class_statistics(sizes, moments=True, dtype=torch.float64)

    def head(self, sums: fm.Sums) -> fm.Tensors:
        """Return the head in closed form, its logits as long as those of class means.

        A class's own prototype is ``scale`` above the mean of all logits, on average over classes.
        """
        means, counts = class_means(sums)
        if self.by == "fed3r":
            head = ridge_head(sums, self.ridge, bias=True)
        else:
            head = {**head_of_means(sums, self.shrinkage, bias=False), "head_bias": torch.zeros(len(means))}
        logits = (means.float() @ head["head"].T + head["head_bias"])[counts > 0]
        above = logits[:, counts > 0].diagonal() - logits.mean(1)
        return {name: value * (self.scale / above.mean()) for name, value in head.items()}
