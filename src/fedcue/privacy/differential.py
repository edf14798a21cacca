"""Differential privacy: what is clipped, how far one image or one client moves it, how much noise it gets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedcue.aggregate.class_means import CentroidSums
from fedcue.aggregate.mean import Adding, Sums
from fedcue.errors import ConfigError, FedcueError
from fedcue.privacy.adding import PrivateAdding, bounded_statistics, clipped
from fedcue.privacy.class_sums import ClippedSums
from fedcue.privacy.mechanisms import Privacy, Streams
from fedcue.privacy.noise import add_up, in_steps, most_noise, noisy_steps
from fedcue.privacy.sensitivity import STATISTICS, check_sensitivities, of_an_image, units
from fedcue.privacy.shares import Shares
from fedcue.privacy.stream import NoiseStream
from fedcue.types import Tensors, TensorSpec, TensorTable, Update


class DifferentialPrivacy(Privacy):
    """Gaussian noise on clipped changes and on clipped statistics of all classes.

    All changes of a client are one vector of length ``clip`` at most, so that another record, or another
    client, moves it by at most ``2 * clip``. How far statistics move is said in ``moves``. That
    holds if each vector follows from its own record and public values alone, so priors have no part in it.
    """

    name: ClassVar[str] = "dp"
    hide_priors: ClassVar[bool] = True
    differential: ClassVar[bool] = True

    where: Literal["central", "local", "distributed"] = Field(
        default="central",
        description="noise by a trusted server, by each client, or by all clients of a secure sum together",
    )
    unit: Literal["image", "client"] = Field(
        default="image", description="what is protected: one training image, or a client with all its images"
    )
    colluding: int = Field(
        default=0, ge=0, description="clients of a sum whose shares of the noise do not count (distributed)"
    )
    max_epsilon: float = Field(
        default=8.0, gt=0, le=1_000_000, description="a run that would spend more is refused"
    )
    delta: float = Field(
        default=1e-5, gt=0, lt=1, description="the probability with which epsilon may be exceeded"
    )
    noise: float | None = Field(
        default=None, gt=0, description="times the sensitivity (default: as max_epsilon needs)"
    )
    head_share: float = Field(
        default=0.5, gt=0, lt=1, description="share of the budget for what is sent before round 0 (cue: 0.9)"
    )
    head_noise: float | None = Field(
        default=None, gt=0, description="noise of what is sent before round 0 (default: as head_share needs)"
    )
    clip: float = Field(default=1.0, gt=0, description="longest change of a client")
    radius: float = Field(default=1.0, gt=0, description="longest cls token in a layer")
    client_bound: float = Field(
        default=100.0,
        gt=0,
        description="longest statistics of a client, in images of length radius (unit=client)",
    )
    count_threshold: float | None = Field(
        default=None, ge=0, description="classes counted below it are dropped (default: 3 deviations)"
    )
    sample: Literal["known", "secret"] = Field(
        default="known", description="secret: nobody but the server learns who takes part"
    )

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

    @property
    def settled(self) -> float:
        """The noise, which is settled before the first client is asked."""
        assert self.noise is not None, "the noise is settled before the first client is asked"
        return self.noise

    def before_rounds(self) -> DifferentialPrivacy:
        """Return the options with the noise of what clients send before round 0."""
        return self if self.head_noise is None else self.model_copy(update={"noise": self.head_noise})

    def upload_dtype(self, spec: TensorSpec) -> torch.dtype:
        """Return the type in which a declared upload leaves a client: statistics in float64."""
        return torch.float64 if spec.kind in STATISTICS else spec.dtype

    def check(self, method: str, table: TensorTable) -> None:
        """Refuse tensors of unknown sensitivity, and samples that cannot be kept secret."""
        check_sensitivities(self.unit, method, table)
        if self.where == "central" and table.each:
            raise ConfigError(
                f"privacy.where=central adds noise to sums over clients, but {method} needs every client's "
                f"{', '.join(table.each)}. Give privacy.where=local."
            )
        if self.sample == "secret" and (
            self.where != "central" or not {*table.kinds.values()}.isdisjoint(STATISTICS)
        ):
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
        tensors = self.bounded(update, reference, table).tensors
        if self.distributed:
            return replace(update, tensors=tensors, loss=None)
        if self.where == "local":
            tensors = self.noisy(tensors, table, stream())
        sent = {name: tensor.to(update.tensors[name].dtype) for name, tensor in tensors.items()}
        return replace(update, tensors=sent, loss=None)

    def bounded(self, update: Update, reference: Tensors, table: TensorTable) -> Update:
        """Return the update with changes and, if clients are the unit, statistics no longer than allowed."""
        update = clipped(update, reference, table, self.clip)
        if self.unit == "image":
            return update
        return bounded_statistics(update, table, units(self.radius), self.client_bound)

    def share(self, update: Update, table: TensorTable, shares: Shares, stream: Streams) -> Update:
        """Add the client's share of the noise to its words."""
        tensors, moves = update.tensors, self.moves(update.tensors, table)
        noise = self.settled * (1 + shares.rounding(tensors, moves))
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

    def moves(self, tensors: Tensors, table: TensorTable) -> dict[str, float]:
        """Return how far one image, or one client, moves each tensor of a message, in units of its noise.

        A client's changes move by ``2 clip``. Its statistics are one vector (``sensitivity``): each of them
        moves by its length at most, and all of them by 1 in these lengths. If a whole client is protected
        they are no longer than ``client_bound`` in units of an image, and move by twice that.
        """
        kinds = {name: table.kinds[name] for name in tensors}
        if self.unit == "client":
            lengths = {kind: 2 * self.client_bound * unit for kind, unit in units(self.radius).items()}
        else:
            layers = sum(len(tensors[name]) for name in tensors if kinds[name] == "class_sums")
            lengths = of_an_image(self.radius, max(layers, 1), "moments" in kinds.values())
        return {name: lengths.get(kinds[name], 2 * self.clip) for name in tensors}

    def noisy(self, tensors: Tensors, table: TensorTable, stream: NoiseStream) -> dict[str, Tensor]:
        """Return tensors with noise on them, in float64."""
        return self.noisy_steps(self.in_steps(tensors, table), table, stream)

    def in_steps(self, tensors: Tensors, table: TensorTable) -> dict[str, Tensor]:
        """Return tensors as whole steps of the grids of their noise."""
        deviations = self._of_one_draw(tensors, table)
        return {name: in_steps(tensor, deviations[name]) for name, tensor in tensors.items()}

    def add_up(self, total: Tensors, steps: Tensors, table: TensorTable) -> dict[str, Tensor]:
        """Return the exact sum of tensors of whole steps, the first of which may be empty."""
        deviations = self._of_one_draw(steps, table)
        return {
            name: add_up(total[name], own, deviations[name]) if name in total else own
            for name, own in steps.items()
        }

    def noisy_steps(self, steps: Tensors, table: TensorTable, stream: NoiseStream) -> dict[str, Tensor]:
        """Return what whole steps stand for, with noise on it, in float64."""
        deviations = self._of_one_draw(steps, table)
        return {name: noisy_steps(steps[name], deviations[name], stream) for name in sorted(steps)}

    def _of_one_draw(self, tensors: Tensors, table: TensorTable) -> dict[str, float]:
        """Return the deviation of one draw of noise for each tensor of a message."""
        values = sum(tensor.numel() for tensor in tensors.values())
        if self.settled > most_noise(values):
            raise FedcueError(
                f"privacy.noise={self.noise:g} is more than its grid allows for {values} numbers: "
                f"at most {most_noise(values):.3g}. Give a larger privacy.max_epsilon."
            )
        return {name: self.settled * move for name, move in self.moves(tensors, table).items()}

    def deviations(self, sums: Sums, table: TensorTable, shares: Shares | None = None) -> dict[str, float]:
        """Return the deviation of the noise in each of the sums."""
        draws = sums.updates if self.where == "local" else 1.0
        if shares is not None:
            draws = sums.updates / shares.honest
        usual = self.settled * math.sqrt(draws)
        return {name: usual * move for name, move in self.moves(sums.tensors, table).items()}

    def drop_rare(self, sums: Sums, table: TensorTable) -> None:
        """Set sums and counts to zero where the noisy count says nothing; afterthought, so free."""
        kinds = table.kinds
        name = next((name for name in sums.tensors if kinds[name] == "class_counts"), None)
        if name is None:
            return
        usual = 3 * sums.deviations[name]
        kept = sums.tensors[name] >= (usual if self.count_threshold is None else self.count_threshold)
        for name, tensor in sums.tensors.items():
            if kinds[name] == "class_counts":
                sums.tensors[name] = torch.where(kept, tensor, 0.0)
            elif kinds[name] == "class_sums":
                sums.tensors[name] = torch.where(kept[:, None], tensor, 0.0)
