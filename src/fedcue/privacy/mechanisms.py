"""What is done to updates before they leave a client, and to their sums at the server.

``none`` does nothing. ``paper`` adds the noise of the PEP-FedPT paper to centroids, which is noise
injection and not differential privacy. ``dp`` is in ``differential``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from pydantic import Field

from fedcue.aggregate.class_means import CentroidSums
from fedcue.aggregate.mean import Adding
from fedcue.errors import ConfigError
from fedcue.options import Options
from fedcue.privacy.class_sums import PaperSums
from fedcue.privacy.shares import Shares
from fedcue.privacy.stream import NoiseStream
from fedcue.types import Tensors, TensorSpec, TensorTable, Update

Streams = Callable[[], NoiseStream]
"""Makes the stream that noise is drawn from; it is called only where there is noise."""


class Privacy(Options):
    """No protection, and the base of the others: every step passes on what it was given."""

    name: ClassVar[str] = "none"
    hide_priors: ClassVar[bool] = False
    """Whether class statistics must not depend on the client's class priors."""
    differential: ClassVar[bool] = False
    """Whether releases are counted against a budget."""

    @property
    def central(self) -> bool:
        """Whether the server adds the noise."""
        return False

    @property
    def secret_sample(self) -> bool:
        """Whether nobody but the server learns who takes part."""
        return False

    def check(self, method: str, table: TensorTable) -> None:
        """Raise a ``ConfigError`` if what the method uploads cannot be protected."""

    def before_rounds(self) -> Privacy:
        """Return what holds for what clients send before round 0."""
        return self

    def upload_dtype(self, spec: TensorSpec) -> torch.dtype:
        """Return the type in which a declared upload leaves a client."""
        return spec.dtype

    def class_sums(self, classes: int, stream: Streams) -> CentroidSums:
        """Return what a client gathers its class statistics with."""
        return CentroidSums(classes)

    def leave(self, update: Update, reference: Tensors, table: TensorTable, stream: Streams) -> Update:
        """Return the update as it leaves the client, which was sent ``reference``."""
        return update

    @property
    def distributed(self) -> bool:
        """Whether each client adds a share of the noise."""
        return False

    def share(self, update: Update, table: TensorTable, shares: Shares, stream: Streams) -> Update:
        """Return an update of words as it leaves the client, with its share of the noise."""
        return update

    def adding(
        self,
        adding: Adding,
        reference: Tensors,
        table: TensorTable,
        stream: Streams,
        shares: Shares | None = None,
    ) -> Adding:
        """Return how the server adds up updates."""
        return adding


class PaperNoise(Privacy):
    """The paper's Laplace noise on centroids: noise injection, not differential privacy."""

    name: ClassVar[str] = "paper"

    epsilon: float = Field(default=0.2, gt=0, description="the paper's symbol; no guarantee goes with it")
    centre: Literal["own", "prototype"] = Field(
        default="own",
        description="distances from the client's mean, or from the prototype across clients (noisy itself)",
    )

    def check(self, method: str, table: TensorTable) -> None:
        """Refuse methods that send no centroids."""
        if not {"class_sums", "class_counts"} & set(table.kinds.values()):
            raise ConfigError(
                f"privacy=paper adds noise to class prototypes, but {method} sends none. "
                "Give method=pep, or privacy=none or dp."
            )

    def class_sums(self, classes: int, stream: Streams) -> CentroidSums:
        """Return centroids that get Laplace noise."""
        return PaperSums(classes, self.epsilon, stream(), self.centre == "prototype")
