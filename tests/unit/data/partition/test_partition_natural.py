"""The clients that the data has."""

from __future__ import annotations

import numpy as np
import pytest
from support.datasets import balanced, made

from fedcue.data.partition import Natural
from fedcue.errors import PartitionError
from fedcue.rng import rng


def test_too_few_owners_are_counted() -> None:
    dataset = balanced(2, 10, 4)
    owned = made(dataset.labels, dataset.is_test, owners=np.arange(len(dataset)) % 2)
    with pytest.raises(PartitionError, match="0 of 2 owners have at least 16 training and 1 test images"):
        Natural().split(owned, rng(0, "partition"))
    assert Natural(min_train=1, clients=1).split(owned, rng(0, "partition")).names in (
        ("owner-0",),
        ("owner-1",),
    )
