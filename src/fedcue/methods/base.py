"""The method contract: a server half and a client half that meet only through named tensors.

Every step has a FedAvg default that a method may override. It runs alike in simulator and deployment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor

from fedcue.aggregate.mean import Combine, Weighting, sum_updates
from fedcue.aggregate.prototypes import CentroidSums, second_moments
from fedcue.errors import ConfigError
from fedcue.model.prompted import PromptedViT, Prompter, no_prompts
from fedcue.model.vit import Architecture
from fedcue.registry import Options
from fedcue.rng import torch_rng
from fedcue.settings import Training
from fedcue.train.local import Loss, StepFilter, fit
from fedcue.train.samples import Batch, Samples
from fedcue.types import ClientMemory, Download, Kind, ServerState, Setting, Tensors, Update

PAPER: dict[str, Any] = {
    "training.optimiser": "sgd",
    "training.lr": 0.1,
    "training.head_lr": None,
    "training.prompt_lr": None,
    "training.momentum": 0.9,
    "training.lr_decay": 0.998,
    "training.weight_decay": 1e-3,
    "training.batch_size": 50,
    "training.epochs": 5,
    "training.clip_norm": 10.0,
}
"""The PEP-FedPT paper's training, given to every method; also what a publication leaves open."""


@dataclass(frozen=True)
class Visit:
    """One client at work: the frozen model, its images, how to train, its random stream."""

    client: int
    model: PromptedViT
    samples: Samples
    training: Training
    generator: Generator
    chunk: int = 100
    class_sums: Callable[[int], CentroidSums] = CentroidSums
    hide_priors: bool = False
    """Whether class statistics must not depend on the client's priors, which every record shapes."""

    @property
    def described(self) -> Samples:
        """The images as class statistics may see them."""
        priors = self.samples.log_priors
        even = torch.full_like(priors, -math.log(priors.shape[-1]))
        return replace(self.samples, log_priors=even) if self.hide_priors else self.samples

    def fit(
        self, loss: Loss, start: Tensors, finished_rounds: int, step_filter: StepFilter | None = None
    ) -> tuple[dict[str, Tensor], float]:
        """Train copies of ``start`` on the client's images (see ``train.local.fit``)."""
        return fit(loss, start, self.samples, self.training, finished_rounds, self.generator, step_filter)

    @torch.no_grad()
    def centroids(self, vectors: Callable[[Batch], Tensor], weight: str = "uniform") -> dict[str, Tensor]:
        """Return the client's class means of ``vectors [B, L, d]`` (``eq:centroid_eq_client``).

        With weight ``count`` class sums and counts are returned instead.
        """
        sums = self.class_sums(self.samples.log_priors.shape[-1])
        for batch in self.described.batches(self.chunk):
            sums.add(vectors(batch), batch.labels)
        return sums.reply(by_count=weight == "count")

    def final_sums(self, prompts: Callable[[Batch], Prompter], moments: bool) -> dict[str, Tensor]:
        """Return class sums and counts of the final cls tokens and, if asked for, their second moments."""
        seen: list[Tensor] = []

        def final(batch: Batch) -> Tensor:
            tokens = self.model.features(batch.inputs, prompts(batch))
            seen.append(tokens[:, 0])
            return tokens

        reply = self.centroids(final, "count")
        return {**reply, "moments": second_moments(seen)} if moments else reply


class Method(Options):
    """Base of all methods: FedAvg of a linear head; hyper-parameters are the fields."""

    name: ClassVar[str]
    prompt_names: ClassVar[tuple[str, ...]] = ()
    """Prompt tensors that a client trains and sends back beside the head."""
    keeps_memory: ClassVar[bool] = False
    """Whether clients keep tensors of their own between visits."""
    class_rows: ClassVar[dict[str, int]] = {}
    """Tensors of which a client needs and changes only its own classes' rows, and their class axis."""
    periodic: ClassVar[tuple[str, ...]] = ()
    """Tensors sent to clients that seldom change."""
    supports_heldout: ClassVar[bool] = True
    """Whether a client that never trained can be served."""
    fixed: ClassVar[dict[str, Any]] = {}
    """Settings that follow from the method, whatever a recipe or the user gives."""
    profiles: ClassVar[dict[str, dict[str, Any]]] = {"paper": PAPER, "native": PAPER}
    """Settings by profile: the PEP-FedPT paper's, and the method's own publication's if it has one."""

    head_bias: bool = Field(default=False, description="give the linear head a bias")
    weighting: Weighting = Field(default="uniform", description="weights of the clients in the average")
    logit_prior: Literal["none", "test", "train+test"] = Field(
        default="none", description="add the log of the client's class prior to the logits"
    )
    prior_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of the class prior that is spread over all classes"
    )

    # What a method says of itself

    def check(self, setting: Setting) -> None:
        """Raise a ``ConfigError`` if the method cannot run on a model and task of these sizes."""

    def first_block(self, setting: Setting) -> int:
        """Return the first block that sees a prompt; everything before it is computed once."""
        return 0

    def bare_blocks(self, setting: Setting) -> tuple[int, ...]:
        """Return the blocks at whose input the method wants cls of the bare backbone."""
        return ()

    # At the server

    def shared(self) -> tuple[str, ...]:
        """Return the names of the tensors that are trained, sent back and averaged."""
        return ("head", *("head_bias",) * self.head_bias, *self.prompt_names)

    def private(self) -> tuple[str, ...]:
        """Return the names of the tensors that a client trains, keeps and never sends."""
        return ()

    def sent(self) -> tuple[str, ...]:
        """Return the names of the tensors that are sent to a client."""
        return self.shared()

    def returned(self) -> tuple[str, ...]:
        """Return the names of the tensors that a client sends back."""
        return self.shared()

    def replied(self) -> tuple[str, ...]:
        """Return the names of the tensors that a client sends before round 0."""
        return ()

    def kinds(self) -> dict[str, Kind]:
        """Return what each returned tensor is; what is left out, no privacy or robust rule admits."""
        return dict.fromkeys(self.shared(), "shared")

    def initial(self, setting: Setting, seed: int) -> dict[str, Tensor]:
        """Return the shared tensors before round 0: here the head ``[C, d]``, no bias by default."""
        return initial_head(setting.classes, setting.width, self.head_bias, seed)

    def start(
        self, setting: Setting, seed: int, replies: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """Return the state before round 0, given the clients' warm-up replies."""
        return ServerState(0, self.initial(setting, seed))

    def download(self, state: ServerState, client: int, seed: int) -> Download:
        """Return what is sent to ``client`` at the start of a round."""
        return Download(client, state.round, seed, {name: state.tensors[name] for name in self.sent()})

    def aggregate(
        self, state: ServerState, updates: Iterable[Update], combine: Combine = sum_updates
    ) -> ServerState:
        """Return the state after a round (FedAvg)."""
        sums = combine(updates, self.weighting)
        return ServerState(state.round + 1, {**state.tensors, **{n: sums.mean(n) for n in self.shared()}})

    # At the client

    def warm_up(self, visit: Visit) -> Update | None:
        """Return the client's reply before round 0, if the method asks for one."""
        return None

    def personalize(
        self, model: PromptedViT, download: Download, log_priors: Tensor, memory: ClientMemory
    ) -> Tensors:
        """Return the tensors the client trains and predicts with, its first private ones included."""
        return {**download.tensors, **memory.tensors}

    def update(self, visit: Visit, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train at the client; return what is sent back and what the client remembers."""
        tensors = self.personalize(visit.model, download, visit.samples.log_priors, memory)
        start = {name: tensors[name] for name in (*self.shared(), *self.private())}
        trained, loss = visit.fit(self.loss(visit.model, tensors), start, download.round)
        kept = ClientMemory({name: trained.pop(name) for name in self.private()})
        return Update(visit.client, len(visit.samples), trained, loss), kept

    def for_test(self, visit: Visit, download: Download, memory: ClientMemory, final: bool) -> Tensors:
        """Return the tensors the client is tested with; ``final`` at the last evaluation."""
        return self.personalize(visit.model, download, visit.samples.log_priors, memory)

    # On both sides: from a batch to logits

    def prompter(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Prompter:
        """Return which prompts go where for the images of a batch."""
        return no_prompts

    def logits(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Tensor:
        """Return the logits ``[B, C]`` of the final cls token (``head_eq``), before any prior."""
        return classify(tensors, model.features(batch.inputs, self.prompter(model, tensors, batch))[:, 0])

    def loss(self, model: PromptedViT, fixed: Tensors) -> Loss:
        """Return the training loss as a function of the trained tensors and a batch."""

        def of_batch(trained: Tensors, batch: Batch) -> Tensor:
            return self.cross_entropy(self.logits(model, {**fixed, **trained}, batch), batch)

        return of_batch

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of ``logits``, with the client's class prior if asked for."""
        if self.logit_prior == "train+test":
            logits = logits + batch.log_priors
        return F.cross_entropy(logits, batch.labels)

    def predict(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> Tensor:
        """Return the logits ``[B, C]`` a client decides with."""
        logits = self.logits(model, tensors, batch)
        return logits if self.logit_prior == "none" else logits + batch.log_priors

    def inspect(self, model: PromptedViT, tensors: Tensors, batch: Batch) -> dict[str, Tensor]:
        """Return per-image tensors worth looking at, such as PEP's mixing weights."""
        return {}


def uniform(shape: Sequence[int], bound: float, generator: Generator) -> Tensor:
    """Draw from the uniform distribution on (-bound, bound)."""
    return (torch.rand(*shape, generator=generator) * 2 - 1) * bound


def initial_head(classes: int, width: int, bias: bool, seed: int) -> dict[str, Tensor]:
    """Draw the head ``[C, d]`` as a linear layer's default does; its bias, if any, is zero."""
    head = uniform((classes, width), 1 / math.sqrt(width), torch_rng(seed, "init", "head"))
    return {"head": head} | ({"head_bias": torch.zeros(classes)} if bias else {})


def initial_prompts(
    name: str, count: int, sizes: Setting | Architecture, seed: int, how: str = "vpt"
) -> Tensor:
    """Draw prompts ``[count, d]`` as VPT does (Xavier bound of the patch embedding), or zeros."""
    if how == "zeros":
        return torch.zeros(count, sizes.width)
    bound = math.sqrt(6 / (3 * sizes.patch**2 + sizes.width))
    return uniform((count, sizes.width), bound, torch_rng(seed, "init", name))


def check_blocks(blocks: int | None, setting: Setting) -> None:
    """Refuse prompts for more blocks than the backbone has."""
    if blocks is not None and blocks > setting.depth:
        raise ConfigError(
            f"method.blocks={blocks} is more than the backbone has: {setting.depth}. "
            "Give a smaller number, or leave it out for prompts in every block."
        )


def classify(tensors: Tensors, features: Tensor) -> Tensor:
    """Apply the linear head to features ``[B, d]`` (``head_eq``)."""
    return F.linear(features, tensors["head"], tensors.get("head_bias"))
