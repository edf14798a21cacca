"""Few classes per client, with the paper's numbers."""

from __future__ import annotations

import numpy as np
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
