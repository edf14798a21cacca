"""PEP-FedPT with the switches that only ablations need, and what figures show of it.

With the defaults it trains as ``pep.PEP`` does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor

import fedcue.methods as fm
from fedcue.methods.pep import PEP


class PEPVariants(PEP):
    """PEP-FedPT: per-image prompts from global prompts, prototypes and class priors; and its ablations."""

    prior: Literal["client", "uniform"] = fm.Field(default="client", description="uniform: without priors")
    prompt_init: fm.PromptInit = fm.Field(default="vpt", description="how prompts start")
    ccmp_mode: Literal["replace", "accumulate"] = fm.Field(
        default="replace", description="accumulate: each mixed block adds a token"
    )
    score_source: Literal["prompted", "bare"] = fm.Field(
        default="prompted", description="bare: scores from a pass without prompts"
    )
    detach_scores: bool = fm.Field(default=False, description="no gradient through the scores")
    zero_prototype: Literal["neutral", "zero"] = fm.Field(
        default="neutral", description="similarity of a class without prototype: the mean, or 0"
    )
    initial_mean: Literal["nonzero", "literal"] = fm.Field(
        default="nonzero", description="literal: the first mean counts absent classes as zeros"
    )
    prototype_weight: Literal["uniform", "count"] = fm.Field(
        default="uniform", description="count: centroids weigh by their images"
    )

    class_average: Literal["all", "holders"] = fm.Field(
        default="all",
        description="who enters a class prompt's mean; holders: not in the paper",
    )

    def check(self, sizes: fm.Sizes) -> None:
        """Refuse averages over holders where clients do not count alike."""
        super().check(sizes)
        alike = self.weighting == self.prototype_weight == "uniform"
        if self.class_average == "holders" and not alike:
            raise fm.ConfigError(
                "method.class_average=holders counts holders, not images. Give method.weighting=uniform and "
                "method.prototype_weight=uniform."
            )

    def needs_all_rows(self) -> str:
        """Name the setting under which a client mixes the prompts of all classes."""
        return "method.prior=uniform" if self.prior == "uniform" else super().needs_all_rows()

    def tensors(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare PEP's tensors; prompts may start with zeros, and counts take the place of holders."""
        specs = []
        for spec in super().tensors(sizes):
            if spec.name.endswith("_prompts"):
                start = fm.prompt_start(spec.name, sizes, self.prompt_init)
                spec = replace(spec, first=partial(start, cast("tuple[int, ...]", spec.shape)))
            if spec.name == "holds" and self.prototype_weight == "count":
                spec = replace(spec, dtype=torch.int64)
            specs.append(spec)
        return specs

    def start(self, sizes: fm.Sizes, seed: int, sums: fm.Sums) -> fm.ServerState:
        """Average the first centroids over their holders or, literally, over everyone."""
        state = super().start(sizes, seed, sums)
        if self.initial_mean == "nonzero":
            return state
        literal = sums.total("centroids") / sums.updates
        return fm.ServerState(state.round, {**state.tensors, "prototypes": literal})

    def aggregate(self, state: fm.ServerState, sums: fm.Sums) -> fm.ServerState:
        """Aggregate as PEP does; class prompts may move by the mean change of their holders."""
        after = super().aggregate(state, sums)
        if self.class_average == "all":
            return after
        old, mean = state.tensors["class_prompts"], after.tensors["class_prompts"]
        holders = sums.total("holds").clamp(min=1)[:, None]  # a client without the class changes nothing
        moved = old + (mean - old) * sums.updates / holders
        return fm.ServerState(after.round, {**after.tensors, "class_prompts": moved})

    def trains_together(self) -> bool:
        """Say whether clients may train in one batch: bare cls tokens are looked up client by client."""
        return super().trains_together() and self.score_source == "prompted"

    def personal(self, client: fm.Client, sent: fm.Tensors) -> fm.Tensors:
        """Keep the rows of the classes that are mixed: all of them without priors."""
        return super().personal(self._mixing(client), sent)

    def reply(self, client: fm.Client, sent: fm.Tensors, trained: fm.Tensors, loss: float) -> fm.Update:
        """Send what PEP sends, with the rows of the classes that were mixed."""
        return super().reply(self._mixing(client), sent, trained, loss)

    def prompter(self, tensors: fm.Tensors, batch: fm.Batch) -> fm.Prompter:
        """Insert what PEP inserts, in one slot or in one for each mixed block."""
        mix, accumulate = partial(self.mixed_prompt, tensors, batch), self.ccmp_mode == "accumulate"
        return fm.mixed(tensors["shared_prompts"], self.layers, mix, accumulate)

    def scores(self, tensors: fm.Tensors, batch: fm.Batch, position: int, cls: Tensor) -> Tensor:
        """Return s from bare cls tokens, even priors or without gradient, as asked for."""
        if self.score_source == "bare":
            cls = batch.bare_cls[:, position]
        batch = replace(batch, log_priors=self._priors(batch.log_priors))
        if self.zero_prototype == "neutral":
            scores = super().scores(tensors, batch, position, cls)
        else:
            similarity = fm.cosines(cls, tensors["prototypes"][position]) * tensors["has_prototype"]
            log_priors = batch.log_priors[..., tensors["classes"]]
            scores = torch.softmax(similarity / self.temperature + log_priors, 1)
        return scores.detach() if self.detach_scores else scores

    def inspect(self, tensors: fm.Tensors, batch: fm.Batch) -> dict[str, Tensor]:
        """Return the mixing weights ``[B, L, C]``."""
        cls = self.cls_tokens(tensors, batch).unbind(1)
        scores = torch.stack([self.scores(tensors, batch, i, one) for i, one in enumerate(cls)], 1)
        return {"mixing_weights": batch.for_all_classes(scores, tensors["classes"])}

    def _mixing(self, client: fm.Client) -> fm.Client:
        return replace(client, log_priors=self._priors(client.log_priors))

    def _priors(self, log_priors: Tensor) -> Tensor:
        even = torch.full_like(log_priors, -math.log(log_priors.shape[-1]))
        return log_priors if self.prior == "client" else even
