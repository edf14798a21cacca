"""Whatever the server makes of updates, it needs no more than sums, weights and counts for it."""

from __future__ import annotations

import pytest
import torch
from support.tables import table_of
from support.tiny_federation import TinyFederation

from fedcue.aggregate.mean import PlainAdding, Sums, sum_updates
from fedcue.methods.tensors import trained, zeros
from fedcue.registry import METHODS
from fedcue.types import Sizes, TensorSpec, Update

SIZES = Sizes(classes=4, width=32, depth=8, patch=4, clients=4)
AVERAGED = [name for name in METHODS.builtin if not METHODS.get(name)().table(SIZES).needs_each]
UPDATES = [Update(i, size, {"head": torch.full((4, 3), float(i)), "counts": torch.tensor([i])})
           for i, size in enumerate([1, 3, 6])]  # fmt: skip
TABLE = table_of(trained("head", (4, 3), zeros), TensorSpec("counts", (1,), returned=True, weighted=False))


def test_each_update_counts_once_or_by_its_samples():
    assert sum_updates(UPDATES, TABLE).mean("head").unique().tolist() == [1.0]
    assert sum_updates(UPDATES, TABLE, "size").mean("head").unique().tolist() == [1.5]


def test_what_is_not_weighted_counts_once_whatever_the_weighting():
    assert sum_updates(UPDATES, TABLE, "size").total("counts").tolist() == [3.0]


def test_memory_does_not_grow_with_the_number_of_updates():
    adding = PlainAdding(Sums(table_of()))
    for update in UPDATES:
        adding.add(update)
    assert adding.sums().each == []
    assert {name: tensor.shape for name, tensor in adding.sums().tensors.items()} == {
        "head": (4, 3),
        "counts": (1,),
    }


def test_only_pfedpg_needs_every_single_update():
    assert set(METHODS.builtin) - set(AVERAGED) == {"pfedpg"}


@pytest.mark.parametrize("weighting", ["uniform", "size"])
@pytest.mark.parametrize("name", AVERAGED)
def test_an_aggregate_follows_from_sums_in_any_order(name, weighting):
    """A secure sum adds each client's terms in an order of its own."""
    tiny = TinyFederation(METHODS.get(name)(weighting=weighting), images=8)
    run = tiny.run(1)
    table, method = tiny.federation.roster.table, tiny.method
    updates = [method.added(update) for update in run.updates[0]]
    start = tiny.start()
    plain = method.aggregate(start, sum_updates(updates, table, weighting))
    secure = method.aggregate(start, sum_updates(updates[::-1], table, weighting))
    for key in plain.tensors:
        torch.testing.assert_close(secure.tensors[key], plain.tensors[key])
