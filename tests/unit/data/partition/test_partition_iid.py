"""Equal parts."""

from __future__ import annotations

import numpy as np
from support.datasets import balanced

from fedcue.data.apportion import share_test
from fedcue.data.partition import IID
from fedcue.rng import rng


def test_a_client_whom_rounding_leaves_without_test_images_gets_one() -> None:
    dataset = balanced(10, 100, 1)
    partition = IID(clients=10).split(dataset, rng(0, "partition"))
    assert [len(part) for part in partition.test] == [1] * 10


def test_nobody_gives_its_only_test_image_away():
    """Clients 0 and 1 hold class 0, of which there is one test image; client 2 has two of another class."""
    train, weights = np.array([[5, 0], [5, 0], [0, 5]]), np.array([[3, 0], [1, 0], [0, 5]])
    counts = share_test(weights, train, np.array([1, 2]), rng(0, "share"))
    assert counts.tolist() == [[1, 0], [0, 0], [0, 2]]


def test_who_has_most_gives_to_each_that_has_none():
    train, weights = np.full((3, 1), 5), np.array([[8], [0], [0]])
    counts = share_test(weights, train, np.array([4]), rng(0, "share"))
    assert counts.tolist() == [[2], [1], [1]]


def test_who_has_given_all_but_one_gives_no_more():
    train, weights = np.full((3, 1), 5), np.array([[8], [0], [0]])
    assert share_test(weights, train, np.array([2]), rng(0, "share")).tolist() == [[1], [1], [0]]
