"""What a server knows of a federation: the settings, the task and who takes part; nobody's images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcue.errors import ConfigError
from fedcue.federate.budget import Budget
from fedcue.federate.protection import Protection, Stream, check_protection
from fedcue.federate.transport import check_transport
from fedcue.methods.base import Method
from fedcue.model.vit import Architecture
from fedcue.rng import rng
from fedcue.settings import RunConfig
from fedcue.types import Setting


class Roster:
    """The clients by name, domain and size, and what follows from that for a run.

    Whoever has the data makes one from it (``Federation``); a deployed server makes one from what
    clients tell when they join.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: str,
        classes: tuple[str, ...],
        architecture: Architecture,
        *,
        names: Sequence[str],
        domains: Sequence[str],
        heldout: NDArray[np.bool_],
        train_sizes: NDArray[np.int64],
        test_sizes: NDArray[np.int64],
        stream: Stream | None = None,
    ) -> None:
        self.config, self.dataset, self.classes, self.architecture = config, dataset, classes, architecture
        self.names, self.domains, self.heldout = names, domains, heldout
        self.train_sizes, self.test_sizes = train_sizes, test_sizes
        self.method: Method = config.method
        self.training_clients: NDArray[np.int64] = np.flatnonzero(~heldout)
        sizes = (len(classes), architecture.width, architecture.depth, architecture.patch)
        self.setting = Setting(*sizes, len(self), len(set(domains)))
        self.method.check(self.setting)
        self._check_sampling()
        check_protection(config)
        check_transport(config)
        self.budget = Budget.of(config, self.training_clients, int(train_sizes[~heldout].sum()))
        self.protection = Protection.of(config, self.budget.privacy, stream)
        self.repeats_noise = stream is None

    def __len__(self) -> int:
        """Return the number of clients, held-out ones included; their ids are 0, 1, and so on."""
        return len(self.heldout)

    @property
    def needed_updates(self) -> int:
        """How many updates a round needs: those asked for, and those without which no rule can hold."""
        return max(self.config.min_updates, int(self.config.aggregate.least))

    @cached_property
    def listed(self) -> NDArray[np.int64]:
        """Ids of the clients that are tested and described: all, or a seeded sample (evaluation.clients)."""
        everyone, count = np.arange(len(self)), self.config.evaluation.clients
        if count == "all" or count >= len(self):
            return everyone
        return np.sort(rng(self.config.seed, "evaluation").choice(everyone, size=count, replace=False))

    def _check_sampling(self) -> None:
        available = len(self.training_clients)
        if self.config.clients_per_round > available:
            raise ConfigError(
                f"clients_per_round={self.config.clients_per_round}, but only {available} of "
                f"{len(self)} clients train. Give at most {available}."
            )
        if self.heldout[self.listed].all():
            raise ConfigError(
                f"evaluation.clients={self.config.evaluation.clients} drew held-out clients only, so that "
                "none that trains would be tested. Give more, or another seed."
            )
