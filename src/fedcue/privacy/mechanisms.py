"""What is done to updates before they leave a client, and to their sums at the server.

``none`` does nothing. ``paper`` adds the noise of the PEP-FedPT paper to centroids, which is noise
injection and not differential privacy. ``dp`` is differentially private for one training record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedcue.aggregate.class_means import CentroidSums
from fedcue.aggregate.mean import Adding, Sums
from fedcue.errors import ConfigError, FedcueError
from fedcue.privacy.adding import PrivateAdding, clipped
from fedcue.privacy.class_sums import ClippedSums, PaperSums
from fedcue.privacy.noise import add_gaussian, most_noise
from fedcue.privacy.shares import Shares
from fedcue.privacy.stream import NoiseStream
from fedcue.registry import Options
from fedcue.types import Kind, Tensors, TensorSpec, TensorTable, Update

Streams = Callable[[], NoiseStream]
"""Makes the stream that noise is drawn from; it is called only where there is noise."""


class Privacy(Options):
    """No protection, and the base of the others: every step passes on what it was given."""

    name: ClassVar[str] = "none"
    hide_priors: ClassVar[bool] = False
    """Whether class statistics must not depend on the client's class priors."""

    @property
    def differential(self) -> bool:
        """Whether releases are counted against a budget."""
        return False

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


class DifferentialPrivacy(Privacy):
    """Gaussian noise on clipped changes and on clipped class sums and counts of all classes.

    All changes of a client are one vector of length ``clip`` at most, so that another record moves
    it by at most ``2 * clip``. Sums over ``L`` layers move by ``2 * sqrt(L) * radius``. Counts are
    scaled so that they move with the sums by no more than that: see ``sensitivity``. That holds if
    each vector follows from its own record and public values alone, so priors have no part in it.
    """

    name: ClassVar[str] = "dp"
    hide_priors: ClassVar[bool] = True

    where: Literal["central", "local", "distributed"] = Field(
        default="central",
        description="noise by a trusted server, by each client, or by all clients of a secure sum together",
    )
    colluding: int = Field(
        default=0, ge=0, description="clients of a sum whose shares of the noise do not count (distributed)"
    )
    max_epsilon: float = Field(default=8.0, gt=0, description="a run that would spend more is refused")
    delta: float = Field(
        default=1e-5, gt=0, lt=1, description="the probability with which epsilon may be exceeded"
    )
    noise: float | None = Field(
        default=None, gt=0, description="times the sensitivity (default: as max_epsilon needs)"
    )
    clip: float = Field(default=1.0, gt=0, description="longest change of a client")
    radius: float = Field(default=1.0, gt=0, description="longest cls token in a layer")
    count_threshold: float | None = Field(
        default=None, ge=0, description="classes counted below it are dropped (default: 3 deviations)"
    )
    sample: Literal["known", "secret"] = Field(
        default="known", description="secret: nobody but the server learns who takes part"
    )

    @property
    def differential(self) -> bool:
        """Whether releases are counted against a budget."""
        return True

    @property
    def central(self) -> bool:
        """Whether the server adds the noise."""
        return self.where == "central"

    @property
    def distributed(self) -> bool:
        """Whether each client adds a share of the noise."""
        return self.where == "distributed"

    @property
    def secret_sample(self) -> bool:
        """Whether nobody but the server learns who takes part."""
        return self.sample == "secret"

    def upload_dtype(self, spec: TensorSpec) -> torch.dtype:
        """Return the type in which a declared upload leaves a client: statistics in float64."""
        return torch.float64 if spec.kind in ("class_sums", "class_counts") else spec.dtype

    def check(self, method: str, table: TensorTable) -> None:
        """Refuse tensors of unknown sensitivity, and samples that cannot be kept secret."""
        kinds = table.kinds
        if not table.uploads:
            raise ConfigError(
                f"privacy=dp has nothing to protect: nothing leaves a client of {method}. Give privacy=none."
            )
        open_ones = [spec.name for spec in table.uploads if spec.kind in (None, "moments")]
        if open_ones:
            raise ConfigError(
                f"privacy=dp cannot protect {method}: it uploads {', '.join(open_ones)}, of which no "
                "sensitivity is declared. Give settings under which it does not (ncm, cue: "
                "method.whiten=false), another method, or privacy=none."
            )
        if self.where == "central" and table.needs_each:
            raise ConfigError(
                f"privacy.where=central adds noise to sums over clients, but {method} needs every client's "
                f"{', '.join(table.each)}. Give privacy.where=local."
            )
        if self.sample == "secret" and (self.where != "central" or "class_sums" in kinds.values()):
            raise ConfigError(
                "privacy.sample=secret holds for clipped updates at a trusted server only: with "
                f"privacy.where={self.where} and method {method} what is released tells who took part. "
                "Give privacy.sample=known."
            )

    def class_sums(self, classes: int, stream: Streams) -> CentroidSums:
        """Return sums of clipped vectors."""
        return ClippedSums(classes, self.radius)

    def leave(self, update: Update, reference: Tensors, table: TensorTable, stream: Streams) -> Update:
        """Clip, add noise if no server is trusted, and keep the training loss at the client.

        What noise is still to come to stays in float64: a shorter number would move farther.
        """
        tensors = clipped(update, reference, table, self.clip).tensors
        if self.distributed:
            return replace(update, tensors=tensors, loss=None)
        if self.where == "local":
            tensors = self.noisy(tensors, table, stream())
        sent = {name: tensor.to(update.tensors[name].dtype) for name, tensor in tensors.items()}
        return replace(update, tensors=sent, loss=None)

    def share(self, update: Update, table: TensorTable, shares: Shares, stream: Streams) -> Update:
        """Add the client's share of the noise to its words."""
        assert self.noise is not None, "the noise is settled before the first client is asked"
        kinds, tensors = table.kinds, update.tensors
        moves = {name: self.sensitivity(kinds[name], tensors[name]) for name in tensors}
        noise = self.noise * (1 + shares.rounding(tensors, moves))
        return shares.add(update, {name: noise * move for name, move in moves.items()}, stream())

    def adding(
        self,
        adding: Adding,
        reference: Tensors,
        table: TensorTable,
        stream: Streams,
        shares: Shares | None = None,
    ) -> Adding:
        """Add noise to the sums, if the server is trusted; then drop classes that are rare or absent."""
        return PrivateAdding(self, adding, reference, table, stream, shares)

    def sensitivity(self, kind: Kind, tensor: Tensor) -> float:
        """Return how far one record moves a tensor of this kind, in units of its noise.

        Class sums and counts are released as one vector. A record that stays in its class moves
        the sums by ``2 sqrt(L) radius`` and no count; one that changes class moves the sums by
        ``sqrt(2 L) radius`` and two counts by one, so ``sqrt(2)``. Divided by ``2 sqrt(L) radius``
        and by 2 both move the whole by at most 1.
        """
        if kind == "class_sums":
            return 2 * math.sqrt(len(tensor)) * self.radius
        return 2.0 if kind == "class_counts" else 2 * self.clip

    def noisy(self, tensors: Tensors, table: TensorTable, stream: NoiseStream) -> dict[str, Tensor]:
        """Return tensors with noise on them, in float64."""
        assert self.noise is not None, "the noise is settled before the first client is asked"
        values = sum(tensor.numel() for tensor in tensors.values())
        if self.noise > most_noise(values):
            raise FedcueError(
                f"privacy.noise={self.noise:g} is more than its grid allows for {values} numbers: "
                f"at most {most_noise(values):.3g}. Give a larger privacy.max_epsilon."
            )
        kinds, out = table.kinds, {}
        for name in sorted(tensors):
            deviation = self.noise * self.sensitivity(kinds[name], tensors[name])
            out[name] = add_gaussian(tensors[name].double(), deviation, stream)
        return out

    def drop_rare(self, sums: Sums, table: TensorTable, shares: Shares | None = None) -> None:
        """Set sums and counts to zero where the noisy count says nothing; afterthought, so free."""
        kinds = table.kinds
        assert self.noise is not None, "the noise is settled before the first client is asked"
        counts = next((sums.tensors[name] for name in sums.tensors if kinds[name] == "class_counts"), None)
        if counts is None:
            return
        draws = sums.updates if self.where == "local" else 1.0
        if shares is not None:
            draws = sums.updates / shares.honest
        usual = 3 * 2 * self.noise * math.sqrt(draws)
        kept = counts >= (usual if self.count_threshold is None else self.count_threshold)
        for name, tensor in sums.tensors.items():
            if kinds[name] == "class_counts":
                sums.tensors[name] = torch.where(kept, tensor, 0.0)
            elif kinds[name] == "class_sums":
                sums.tensors[name] = torch.where(kept[:, None], tensor, 0.0)
