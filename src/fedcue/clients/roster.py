"""What a server knows of a federation: settings, task, who takes part and when; no images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcue.aggregate.mean import Summing
from fedcue.config.settings import RunConfig
from fedcue.errors import ConfigError
from fedcue.model.vit import Architecture
from fedcue.privacy.budget import Budget, Schedule
from fedcue.privacy.guard import Protection, Stream, check_protection, simulated_stream
from fedcue.rng import rng
from fedcue.types import Sizes, TensorTable


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
        partition: str = "",
        dropped: int = 0,
    ) -> None:
        self.config, self.dataset, self.classes, self.architecture = config, dataset, classes, architecture
        self.names, self.domains, self.heldout = names, domains, heldout
        self.train_sizes, self.test_sizes = train_sizes, test_sizes
        self.partition, self.dropped = partition or config.partition.name, dropped
        self.method = config.method
        self.training_clients: NDArray[np.int64] = np.flatnonzero(~heldout)
        self.sizes = Sizes(
            len(classes),
            architecture.width,
            architecture.depth,
            architecture.patch,
            len(self),
            len(set(domains)),
        )
        self.method.check(self.sizes)
        self.table = self.method.table(self.sizes)
        self.schedule = Schedule(
            self.training_clients, config.clients_per_round, config.rounds, config.warm_start, config.seed
        )
        if config.pooled:
            _check_pooled(config, self.table)
        self._check_sampling()
        summing = Summing(self.table, self.method.weighting, self.method.added)
        check_protection(self.method.name, summing, config.aggregate, config.privacy)
        records = int(train_sizes[~heldout].sum())
        self.budget = Budget.of(config.privacy, self.table, self.schedule, records)
        self.protection = Protection(
            config.aggregate,
            self.budget.privacy,
            summing,
            stream or simulated_stream(config.seed),
            asked=(self.schedule.asked_first, config.clients_per_round),
        )
        self.protection.shares("a round")  # refused here if the settings leave no room for them
        self.repeats_noise = self.budget.simulated = stream is None

    def __len__(self) -> int:
        """Return the number of clients, held-out ones included; their ids are 0, 1, and so on."""
        return len(self.heldout)

    @property
    def needed_updates(self) -> int:
        """How many updates a round needs: those asked for, and those without which no rule can hold."""
        config = self.config
        if config.pooled:
            return 1
        return max(config.min_updates, config.aggregate.needed(config.clients_per_round))

    def visited(self, finished_rounds: int, attempt: int = 0) -> list[int]:
        """Return the clients visited in a round: those drawn, or one for all if images are pooled."""
        drawn = self.schedule.drawn(finished_rounds, attempt)
        return drawn[:1] if self.config.pooled else drawn

    @cached_property
    def listed(self) -> NDArray[np.int64]:
        """Ids of the clients that are tested and described: all, or a seeded sample (evaluation.clients)."""
        asked = self.config.evaluation.clients
        count = len(self) if asked == "all" else min(asked, len(self))
        return np.sort(rng(self.config.seed, "evaluation").choice(len(self), size=count, replace=False))

    def tested(self) -> list[int]:
        """Return the listed clients that the method can serve."""
        serves_all = self.method.supports_heldout
        return [client for client in self.listed.tolist() if serves_all or not self.heldout[client]]

    def _check_sampling(self) -> None:
        config, available = self.config, len(self.training_clients)
        if config.clients_per_round > available:
            raise ConfigError(
                f"clients_per_round={config.clients_per_round}, but only {available} of "
                f"{len(self)} clients train. Give at most {available}."
            )
        if self.heldout[self.listed].all():
            raise ConfigError(
                f"evaluation.clients={config.evaluation.clients} drew held-out clients only: none that "
                "trains would be tested. Give more, or another seed."
            )
        config.aggregate.check(
            config.clients_per_round, self.schedule.asked_first if self.table.replied else None
        )
        least = config.aggregate.least
        if self.table.replied and config.warm_start != "all" and config.warm_start < least:
            raise ConfigError(
                f"warm_start={config.warm_start} is too few for aggregate={config.aggregate.name}, which "
                f"needs {least} answers. Give warm_start={least} or more, or warm_start=all."
            )


def _check_pooled(config: RunConfig, table: TensorTable) -> None:
    """Refuse what has no meaning where one model is trained in one place."""
    given = {
        f"privacy={config.privacy.name}": config.privacy.name != "none",
        f"aggregate={config.aggregate.described}": config.aggregate.sums_only or not config.aggregate.plain,
        f"method={config.method.name}": bool(table.kept or table.replied or table.each),
    }
    if any(given.values()):
        raise ConfigError(
            f"pooled=true (method=central) trains one model on everybody's images, so that "
            f"{', '.join(text for text, wrong in given.items() if wrong)} has no meaning. Give privacy=none, "
            "aggregate=mean and a method whose clients only train what they are sent."
        )
