"""Tables of tensors and rosters for tests that need no data."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from fedcue.aggregate.mean import Summing, Sums
from fedcue.aggregate.robust import Aggregation
from fedcue.clients.roster import Roster
from fedcue.config.layers import load
from fedcue.config.settings import RunConfig
from fedcue.methods.tensors import reply, trained, zeros
from fedcue.model.vit import Architecture
from fedcue.types import Tensors, TensorSpec, TensorTable, Update

SHAPE = Architecture(width=32, depth=8, heads=2, patch=4, image_size=8, hidden=32)


def table_of(*specs: TensorSpec) -> TensorTable:
    """Return a table; without specs that of a head ``[4, 3]`` alone."""
    return TensorTable(specs or (trained("head", (4, 3), zeros),))


STATISTICS = table_of(
    reply("centroids", (1, 1, 4), "class_sums", rows=1),
    reply("holds", (1,), "class_counts", rows=0, dtype=torch.int64),
)


def combined(
    rule: Aggregation, updates: Iterable[Update], reference: Tensors, table: TensorTable | None = None
) -> Sums:
    """Return what a rule makes of updates."""
    adding = rule.adding(reference, Summing(table or table_of()))
    for update in updates:
        adding.add(update)
    return adding.sums()


def roster_of(config: RunConfig, clients: int = 20, heldout: int = 2, train_size: int = 60) -> Roster:
    """Return a roster of equal clients, the last of which are held out."""
    return Roster(
        config,
        "digits",
        tuple(map(str, range(10))),
        SHAPE,
        names=[f"client-{number}" for number in range(clients)],
        domains=[""] * clients,
        heldout=np.arange(clients) >= clients - heldout,
        train_sizes=np.full(clients, train_size),
        test_sizes=np.full(clients, 20),
    )


def roster_with(*settings: str, recipe: str = "default") -> Roster:
    """Return such a roster for a recipe with some settings."""
    return roster_of(load(recipe, settings))
