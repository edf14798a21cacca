"""Whatever the server makes of updates, it needs no more than sums, weights and counts for it."""

from __future__ import annotations

import pytest
import torch
from support.tables import table_of
from support.tiny_federation import TinyFederation

from fedcue.aggregate.mean import PlainAdding, Summing, sum_updates
from fedcue.methods.tensors import trained, zeros
from fedcue.registry import METHODS
from fedcue.types import Sizes, TensorSpec, Update

SIZES = Sizes(classes=4, width=32, depth=8, patch=4, clients=4)
AVERAGED = [name for name in METHODS.builtin if not METHODS.get(name)().table(SIZES).each]
UPDATES = [Update(i, size, {"head": torch.full((4, 3), float(i)), "counts": torch.tensor([i])})
           for i, size in enumerate([1, 3, 6])]  # fmt: skip
TABLE = table_of(trained("head", (4, 3), zeros), TensorSpec("counts", (1,), returned=True, weighted=False))


def test_each_update_counts_once_or_by_its_samples():
    assert sum_updates(UPDATES, TABLE).mean("head").unique().tolist() == [1.0]
    assert sum_updates(UPDATES, TABLE, "size").mean("head").unique().tolist() == [1.5]


def test_what_is_not_weighted_counts_once_whatever_the_weighting():
    assert sum_updates(UPDATES, TABLE, "size").total("counts").tolist() == [3.0]


def test_memory_does_not_grow_with_the_number_of_updates():
    adding = PlainAdding(Summing(table_of()))
    for update in UPDATES:
        adding.add(update)
    assert adding.sums().each == []
    assert {name: tensor.shape for name, tensor in adding.sums().tensors.items()} == {
        "head": (4, 3),
        "counts": (1,),
    }


def test_only_pfedpg_and_fedcof_need_something_of_every_single_client():
    needed = {name: METHODS.get(name)().table(SIZES).each for name in METHODS.builtin}
    assert {name: each for name, each in needed.items() if each} == {
        "pfedpg": ("prompt_change",),
        "fedcof": ("centroids", "holds"),
    }


def test_of_single_replies_only_the_rows_of_the_clients_own_classes_are_kept():
    table = METHODS.get("fedcof")().table(SIZES)
    reply = {"centroids": torch.arange(128.0).view(1, 4, 32), "holds": torch.tensor([0, 2, 0, 1])}
    sums = sum_updates([Update(0, 3, reply), Update(1, 3, reply)], table)
    assert torch.equal(sums.total("centroids"), 2 * reply["centroids"])
    for own in sums.each:
        assert own.tensors["classes"].tolist() == [1, 3]
        assert own.tensors["holds"].tolist() == [2, 1]
        assert torch.equal(own.tensors["centroids"], reply["centroids"][:, [1, 3]])


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


@pytest.mark.parametrize(("weighting", "weight", "total"), [("uniform", 3, 3.0), ("size", 10, 15.0)])
def test_sums_and_their_weight_are_those_of_the_updates(weighting, weight, total):
    """Values 0, 1 and 2 of clients with 1, 3 and 6 images."""
    sums = sum_updates(UPDATES, TABLE, weighting)
    assert (sums.weight, sums.updates) == (weight, 3)
    assert sums.total("head").unique().tolist() == [total]
    assert sums.tensors["head"].dtype == torch.float64


def test_what_is_a_clients_own_is_kept_one_by_one_and_not_added_up():
    table = METHODS.get("pfedpg")().table(SIZES)
    updates = [Update(n, 1, {"prompt_change": torch.full((10, 32), float(n))}) for n in (4, 2)]
    sums = sum_updates(updates, table)
    assert sums.tensors == {}
    assert [(own.client, own.tensors["prompt_change"][0, 0].item()) for own in sums.each] == [
        (4, 4.0),
        (2, 2.0),
    ]
