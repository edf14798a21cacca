"""Clients: held out, validated, rid of unreadable images."""

from __future__ import annotations

import numpy as np
import pytest
from support.datasets import CIFAR, balanced, made

from fedcue.data.clients import drop_images, make_clients
from fedcue.data.partition import IID, Natural
from fedcue.errors import DataError, PartitionError
from fedcue.rng import rng


def test_heldout_clients_can_be_listed_and_are_checked() -> None:
    partition = IID(clients=4).split(CIFAR, rng(0, "partition"))
    made = make_clients(CIFAR, partition, heldout=[1, 3], seed=0)
    assert [client.id for client in made if client.heldout] == [1, 3]
    for wrong, message in (([4], "ids from 0 to 3"), (4, "at most 3"), (1.5, "neither"), (-1, "neither")):
        with pytest.raises(PartitionError, match=message):
            make_clients(CIFAR, partition, heldout=wrong, seed=0)
    with pytest.raises(PartitionError, match="validation_share=1"):
        make_clients(CIFAR, partition, validation_share=1, seed=0)


def test_holding_out_and_validating_do_not_change_the_test_images() -> None:
    partition = IID(clients=4).split(CIFAR, rng(0, "partition"))
    plain = make_clients(CIFAR, partition, seed=0)
    tuned = make_clients(CIFAR, partition, heldout=0.25, validation_share=0.1, seed=0)
    for before, after in zip(plain, tuned, strict=True):
        assert np.array_equal(before.test, after.test)
        assert np.array_equal(np.sort(np.r_[after.train, after.validation]), before.train)
        assert len(after.validation) == pytest.approx(0.1 * len(before.train), abs=1)
        assert np.array_equal(np.sort(after.indices), np.sort(before.indices))


def test_which_images_validate_follows_from_the_seed() -> None:
    partition = IID(clients=8).split(CIFAR, rng(0, "p"))

    def chosen(seed: int) -> list[list[int]]:
        clients = make_clients(CIFAR, partition, validation_share=0.1, seed=seed)
        return [client.validation.tolist() for client in clients]

    assert chosen(0) == chosen(0)
    assert chosen(0) != chosen(1)


def test_bad_images_leave_their_clients() -> None:
    partition = IID(clients=2).split(balanced(2, 10, 2), rng(0, "partition"))
    dataset = balanced(2, 10, 2)
    clients = make_clients(dataset, partition, seed=0)
    bad = clients[0].train[:3]
    assert [c.train.tolist() for c in drop_images(dataset, clients, bad)] == [
        c.train.tolist() for c in clients.without(bad)
    ]
    kept = clients.without(bad)
    assert len(kept[0].train) == 7
    assert kept[0].class_priors.sum() == pytest.approx(1)
    assert not np.isin(bad, kept[0].train).any()
    assert clients.without(bad[:0]) is clients
    with pytest.raises(DataError, match=r"Client 1 \(client-1\) has no readable"):
        clients.without(clients[1].test)


def test_a_client_that_never_had_test_images_keeps_its_training_images() -> None:
    dataset = made([0] * 8, [False] * 6 + [True] * 2, owners=[0, 0, 0, 1, 1, 1, 0, 0])
    clients = make_clients(dataset, Natural(min_test=0).split(dataset, rng(0, "partition")), seed=0)
    kept = clients.without(np.array([3]))
    assert [len(client.train) for client in kept] == [3, 2]
    assert [len(client.test) for client in kept] == [2, 0]
