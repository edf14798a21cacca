"""Which clients take part in a round: a seeded stream that depends on nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcue.rng import rng


def sample_clients(clients: NDArray[np.int64], count: int, seed: int, round_: int) -> list[int]:
    """Draw ``count`` distinct clients of round ``round_``, in the order drawn."""
    chosen = rng(seed, "sampling", round_).choice(len(clients), size=count, replace=False, shuffle=True)
    return [int(client) for client in clients[chosen]]


def warm_start_clients(clients: NDArray[np.int64], count: int | str, seed: int) -> list[int]:
    """Return the clients that are asked before round 0: all of them, or a seeded sample."""
    if count == "all" or int(count) >= len(clients):
        return [int(client) for client in clients]
    return sorted(int(client) for client in rng(seed, "warm start").choice(clients, size=int(count), replace=False))
