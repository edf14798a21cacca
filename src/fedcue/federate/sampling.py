"""Which clients take part in a round: a seeded stream that depends on nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcue.rng import rng
from fedcue.settings import RunConfig


def sample_clients(
    clients: NDArray[np.int64], config: RunConfig, finished_rounds: int, attempt: int = 0
) -> list[int]:
    """Draw the distinct clients of a round, in the order drawn; ``attempt`` counts repeated draws."""
    generator = rng(config.seed, "sampling", finished_rounds)
    for _ in range(attempt + 1):
        chosen = generator.choice(len(clients), size=config.clients_per_round, replace=False)
    return [int(client) for client in clients[chosen]]


def warm_start_clients(clients: NDArray[np.int64], count: int | str, seed: int) -> list[int]:
    """Return the clients that are asked before round 0: all of them, or a seeded sample."""
    if count == "all" or int(count) >= len(clients):
        return [int(client) for client in clients]
    return sorted(
        int(client) for client in rng(seed, "warm start").choice(clients, size=int(count), replace=False)
    )
