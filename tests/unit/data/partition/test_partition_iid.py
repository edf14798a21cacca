"""Equal parts."""

from __future__ import annotations

from support.datasets import balanced

from fedcue.data.partition import IID
from fedcue.rng import rng


def test_a_client_whom_rounding_leaves_without_test_images_gets_one() -> None:
    dataset = balanced(10, 100, 1)
    partition = IID(clients=10).split(dataset, rng(0, "partition"))
    assert [len(part) for part in partition.test] == [1] * 10
