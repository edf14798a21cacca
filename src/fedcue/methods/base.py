"""The method contract: a server half and a client half that meet only through named tensors.

A method declares its tensors once (``tensors``) and overrides the steps in which it differs from
FedAvg of a linear head. The same object runs in the simulator and in a deployment.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field
from torch import Tensor

from fedcue.aggregate.mean import Sums, Weighting
from fedcue.errors import ConfigError
from fedcue.methods.client import Client
from fedcue.methods.tensors import linear_head
from fedcue.model.prompted import Prompter, no_prompts
from fedcue.options import Options
from fedcue.train.batches import Batch
from fedcue.train.sgd import Loss
from fedcue.types import ServerState, Sizes, Tensors, TensorSpec, TensorTable, Update

PAPER: dict[str, Any] = {
    "training.optimiser": "sgd",
    "training.lr": 0.1,
    "training.head_lr": None,
    "training.prompt_lr": None,
    "training.class_prompt_lr": None,
    "training.momentum": 0.9,
    "training.lr_decay": 0.998,
    "training.weight_decay": 1e-3,
    "training.batch_size": 50,
    "training.clip_norm": 10.0,
}
"""The PEP-FedPT paper's training, given to every method; also what a publication leaves open."""
STEADY: dict[str, Any] = {**PAPER, "training.lr_decay": 1.0, "training.clip_norm": None}
"""The same with a constant rate and gradients of any length."""


LogitPrior = Literal["none", "test", "train+test", "mask"]
LOGIT_PRIOR = "add the log of the client's class prior to the logits; mask: only rule out classes without one"


class Method(Options):
    """Base of all methods: FedAvg of a linear head; hyper-parameters are the fields."""

    name: ClassVar[str]
    supports_heldout: ClassVar[bool] = True
    """Whether a client that never trained can be served."""
    fixed: ClassVar[dict[str, Any]] = {}
    """Settings that follow from the method, whatever a recipe or the user gives."""
    under_dp: ClassVar[dict[str, Any]] = {}
    """Settings under ``privacy=dp``, unless others are given."""
    profiles: ClassVar[dict[str, dict[str, Any]]] = {"paper": PAPER, "native": PAPER}
    """Settings by profile: the PEP-FedPT paper's, and the method's own publication's if it has one."""

    head_bias: bool = Field(default=False, description="give the linear head a bias")
    weighting: Weighting = Field(default="uniform", description="weights of the clients in the average")
    logit_prior: LogitPrior = Field(default="none", description=LOGIT_PRIOR)
    prior_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of the class prior that is spread over all classes"
    )

    # What a method says of itself

    def tensors(self, sizes: Sizes) -> list[TensorSpec]:
        """Declare the method's tensors: here the head, and its bias if there is one."""
        return linear_head(sizes, self.head_bias)

    def table(self, sizes: Sizes) -> TensorTable:
        """Return the declared tensors as a table."""
        return TensorTable(tuple(self.tensors(sizes)))

    def check(self, sizes: Sizes) -> None:
        """Raise a ``ConfigError`` if the method cannot run on a model and task of these sizes."""

    def first_block(self, sizes: Sizes) -> int:
        """Return the first block that sees a prompt; everything before it is computed once."""
        return 0

    def bare_blocks(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the blocks at whose input the method wants cls of the bare backbone."""
        return ()

    def needs_all_rows(self) -> str:
        """Name the setting under which a client needs the rows of all classes; empty if there is none."""
        return "method.prior_smoothing above 0" if self.prior_smoothing > 0 else ""

    def adapts(self) -> bool:
        """Say whether each client trains once more before the last test, for that test alone."""
        return False

    # At the server

    def start(self, sizes: Sizes, seed: int, sums: Sums) -> ServerState:
        """Return the state before round 0, given the sums of the clients' replies."""
        return ServerState(0, self.table(sizes).first(seed))

    def download(self, state: ServerState, client: int, sizes: Sizes, seed: int) -> Tensors:
        """Return the tensors that are sent to ``client`` at the start of a round."""
        return {name: state.tensors[name] for name in self.table(sizes).sent}

    def added(self, update: Update) -> Update:
        """Return what is added up of an update."""
        return update

    def aggregate(self, state: ServerState, sums: Sums) -> ServerState:
        """Return the state after a round, given the sums of the clients' updates (FedAvg)."""
        return ServerState(state.round + 1, {**state.tensors, **sums.means()})

    # At the client

    def warm_up(self, client: Client) -> Tensors:
        """Return the client's reply before round 0; nothing if the method asks for none."""
        return {}

    def personal(self, client: Client, sent: Tensors) -> Tensors:
        """Return the tensors the client trains and predicts with: what it keeps wins over what is sent."""
        return {**client.first_kept(), **sent, **client.memory}

    def update(self, client: Client, sent: Tensors) -> Update:
        """Train at the client; return what is sent back and what the client keeps."""
        tensors = self.personal(client, sent)
        start = {name: tensors[name] for name in client.table.trained}
        return self.reply(client, sent, *client.fit(self.loss(tensors), start))

    def reply(self, client: Client, sent: Tensors, trained: Tensors, loss: float) -> Update:
        """Return what is sent back and kept of what was trained."""
        return client.update(trained, loss)

    def trains_together(self) -> bool:
        """Say whether several clients may train in one batch: they may if ``update`` is this one."""
        return type(self).update is Method.update

    def for_test(self, client: Client, sent: Tensors, final: bool) -> Tensors:
        """Return the tensors the client is tested with; ``final`` at the last evaluation."""
        return self.personal(client, sent)

    # On both sides: from a batch to logits

    def prompter(self, tensors: Tensors, batch: Batch) -> Prompter:
        """Return which prompts go where for the images of a batch."""
        return no_prompts

    def logits(self, tensors: Tensors, batch: Batch) -> Tensor:
        """Return the logits ``[B, C]`` of the final cls token (``head_eq``), before any prior."""
        return classify(tensors, batch.features(self.prompter(tensors, batch)).squeeze(1))

    def loss(self, fixed: Tensors) -> Loss:
        """Return the training loss as a function of the trained tensors and a batch."""
        return lambda trained, batch: self.cross_entropy(self.logits({**fixed, **trained}, batch), batch)

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of ``logits``, with the client's class prior if asked for."""
        if self.logit_prior == "train+test":
            logits = logits + batch.log_priors
        return F.cross_entropy(logits, batch.labels)

    def predict(self, tensors: Tensors, batch: Batch) -> Tensor:
        """Return the logits ``[B, C]`` a client decides with."""
        logits = self.logits(tensors, batch)
        if self.logit_prior == "none":
            return logits
        if self.logit_prior == "mask":
            return logits.masked_fill(batch.log_priors == -torch.inf, -torch.inf)
        return logits + batch.log_priors

    def inspect(self, tensors: Tensors, batch: Batch) -> dict[str, Tensor]:
        """Return per-image tensors worth looking at, such as PEP's mixing weights."""
        return {}


def ascending(blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse block indices that are negative, repeated or out of order."""
    if min(blocks) < 0 or list(blocks) != sorted(set(blocks)):
        raise ValueError("must be ascending block indices from 0, such as [4, 5, 6]")
    return blocks


Blocks = Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(ascending)]
"""Indices of blocks, counted from 0."""


def check_layers(layers: tuple[int, ...], sizes: Sizes) -> None:
    """Refuse block indices beyond the last block."""
    if max(layers) >= sizes.depth:
        raise ConfigError(
            f"method.layers={list(layers)} reach beyond the backbone, whose blocks are "
            f"0 to {sizes.depth - 1}. Give smaller indices."
        )


def check_blocks(blocks: int | None, sizes: Sizes) -> None:
    """Refuse prompts for more blocks than the backbone has."""
    if blocks is not None and blocks > sizes.depth:
        raise ConfigError(
            f"method.blocks={blocks} is more than the backbone has: {sizes.depth}. "
            "Give a smaller number, or leave it out for prompts in every block."
        )


def classify(tensors: Tensors, features: Tensor) -> Tensor:
    """Apply the linear head to features ``[B, d]`` (``head_eq``)."""
    return F.linear(features, tensors["head"], tensors.get("head_bias"))


def cosines(vectors: Tensor, others: Tensor) -> Tensor:
    """Return the cosines ``[B, C]`` of ``vectors [B, d]`` and ``others [C, d]``, at least in float32."""
    precise = torch.promote_types(vectors.dtype, torch.float32)
    return F.normalize(vectors.to(precise), dim=1) @ F.normalize(others.to(precise), dim=1).T
