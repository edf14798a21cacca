"""Dirichlet label skew, in both published ways."""

from __future__ import annotations

import numpy as np
from support.datasets import CIFAR

from fedcue.data.partition import Dirichlet
from fedcue.rng import rng


def test_dirichlet_clients_are_skewed_by_alpha() -> None:
    effective = []
    for alpha in (0.1, 0.3, 100.0):
        partition = Dirichlet(clients=100, alpha=alpha).split(CIFAR, rng(0, "partition"))
        train = partition.class_counts(CIFAR)
        assert np.all(train.sum(axis=1) == 500)
        share = train / 500
        effective.append(np.mean(1 / (share**2).sum(axis=1)))
        test = partition.class_counts(CIFAR, "test")
        assert np.abs(test.sum(axis=0) - 100).max() == 0
        assert np.abs(test - train / 5).max() < 1
    assert effective[0] < 15 < effective[1] < 35 < 80 < effective[2]


def test_class_wise_dirichlet_clients_differ_in_size() -> None:
    partition = Dirichlet(clients=100, alpha=0.3, flavour="class").split(CIFAR, rng(0, "partition"))
    sizes = np.array([len(part) for part in partition.train])
    assert sizes.sum() == 50_000
    assert sizes.min() >= 10
    assert sizes.max() > 1.1 * sizes.min()
