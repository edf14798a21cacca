"""Which clients take part in a round: a seeded stream that depends on nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedcue.rng import rng


@dataclass(frozen=True, eq=False)
class ClientSchedule:
    """Who is asked when; only clients that train are ever drawn."""

    training: NDArray[np.int64]
    """Ids of the clients that train."""
    per_round: int
    rounds: int
    warm_start: Literal["all"] | int
    seed: int

    @property
    def clients(self) -> int:
        """Number of clients that may be drawn."""
        return len(self.training)

    def drawn(self, finished_rounds: int, attempt: int = 0) -> list[int]:
        """Draw the distinct clients of a round, in the order drawn; ``attempt`` counts repeated draws."""
        generator = rng(self.seed, "sampling", finished_rounds)
        for _ in range(attempt + 1):
            chosen = generator.choice(self.clients, size=self.per_round, replace=False)
        return [int(client) for client in self.training[chosen]]

    @property
    def asked_first(self) -> int:
        """Number of clients that are asked before round 0."""
        return self.clients if self.warm_start == "all" else min(self.warm_start, self.clients)

    def first(self) -> list[int]:
        """Return the clients that are asked before round 0: all of them, or a seeded sample."""
        if self.warm_start == "all" or self.warm_start >= self.clients:
            return [int(client) for client in self.training]
        chosen = rng(self.seed, "warm start").choice(self.training, size=self.warm_start, replace=False)
        return sorted(int(client) for client in chosen)
