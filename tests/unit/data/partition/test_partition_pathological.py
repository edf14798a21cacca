"""Few classes per client, with the paper's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from support.datasets import CIFAR

from fedcue.data.partition import Pathological
from fedcue.data.readers.digits import Digits
from fedcue.rng import rng


def test_pathological_cifar_has_ten_owners_per_class_with_similar_shares() -> None:
    partition = Pathological(clients=100, classes_per_client=10).split(CIFAR, rng(0, "partition"))
    train, test = partition.class_counts(CIFAR), partition.class_counts(CIFAR, "test")
    assert np.all((train > 0).sum(axis=0) == 10)
    assert np.all((train > 0).sum(axis=1) == 10)
    shares = train[train > 0] / 500
    assert shares.min() > 0.4 / (0.4 + 9 * 0.6) - 0.01
    assert shares.max() < 0.6 / (0.6 + 9 * 0.4) + 0.01
    assert np.abs(test / 100 - train / 500).max() < 0.02


def test_a_rare_class_has_fewer_owners_rather_than_an_error() -> None:
    dataset = Digits(imbalance=100).load(0)
    partition = Pathological(clients=20, classes_per_client=4).split(dataset, rng(0, "partition"))
    train = partition.class_counts(dataset)
    assert (train > 0).sum(axis=0)[9] == len(dataset.train[dataset.labels[dataset.train] == 9]) == 2


def test_test_images_follow_the_drawn_shares_not_the_rounded_counts() -> None:
    # 3 training images of a class among 4 owners: two owners with equal counts have different shares
    train, test = np.full(6, 7), np.full(6, 10_000)
    apart = []
    for seed in range(5):
        counts = Pathological(clients=4, classes_per_client=6).counts(train, test, rng(seed, "partition"))
        shares = counts.test / test
        assert ((counts.train > 0) == (counts.test > 0)).all()
        assert shares.min() > 0.4 / (0.4 + 3 * 0.6) - 1e-3
        assert shares.max() < 0.6 / (0.6 + 3 * 0.4) + 1e-3
        apart += [len(np.unique(column)) for column in counts.test.T]
    assert min(apart) == 4, "by counts, owners of equally many training images would be alike"


def test_an_owner_without_training_images_of_a_class_is_not_tested_on_it() -> None:
    rule = Pathological(clients=4, classes_per_client=2)
    counts = rule.counts(np.array([2, 40]), np.array([9, 40]), rng(0, "partition"))
    assert (counts.train[:, 0] > 0).sum() == 2, "four owners of two training images"
    assert counts.test[counts.train == 0].sum() == 0
    assert counts.test.sum(axis=0).tolist() == [9, 40]


def test_shares_are_spread_evenly_from_four_to_six_tenths() -> None:
    # with two owners of every class, the share of one is a / (a + b) for a, b ~ U(0.4, 0.6)
    rule = Pathological(clients=2, classes_per_client=400)
    counts = rule.counts(np.full(400, 10_000), np.full(400, 10), rng(0, "partition"))
    shares = counts.train[0] / 10_000
    assert shares.min() == pytest.approx(0.4, abs=0.01)
    assert shares.max() == pytest.approx(0.6, abs=0.01)
    assert shares.mean() == pytest.approx(0.5, abs=0.005)
    assert shares.std() == pytest.approx(0.0409, abs=0.003)


def test_of_as_many_images_as_owners_each_gets_one_and_of_more_each_gets_some() -> None:
    for clients in (2, 3, 7, 20):
        rule = Pathological(clients=clients, classes_per_client=3)
        for seed in range(5):
            train = clients + np.array([0, 1, clients])
            counts = rule.counts(train, train, rng(seed, "partition"))
            assert (counts.train[:, 0] == 1).all()
            assert (counts.train > 0).all()
