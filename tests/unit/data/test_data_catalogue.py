from __future__ import annotations

import numpy as np
import pytest

from fedcue.data.catalogue import CATALOGUE, describe
from fedcue.data.clients import make_clients
from fedcue.data.partition import ByDomain, Pathological
from fedcue.data.readers.layouts import LAYOUTS
from fedcue.errors import DataError
from fedcue.registry import DATASETS
from fedcue.rng import rng


def outline(name: str):  # type: ignore[no-untyped-def]
    return DATASETS.get(name)().outline(0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_description_is_complete_and_can_be_planned_with(name: str) -> None:
    description = describe(name)
    assert description.licence
    assert description.source.startswith("http")
    assert set(description.layouts) <= set(LAYOUTS)
    assert name in DATASETS.names()
    dataset = outline(name)
    assert len(dataset.classes) == description.classes
    counted = sum(size * owners for size, owners in description.owner_sizes)
    assert len(dataset) == (counted or description.train) + description.test
    assert len(dataset.test) > 0


def test_the_paper_s_partitions_can_be_planned_without_data() -> None:
    cifar = Pathological(clients=100, classes_per_client=10).split(outline("cifar100"), rng(0, "partition"))
    assert sum(map(len, cifar.train)) == 50_000
    domainnet = outline("domainnet")
    partition = ByDomain(clients_per_domain=10, classes_per_client=5).split(domainnet, rng(0, "partition"))
    heldout = [client for client in make_clients(domainnet, partition, heldout=6, seed=0) if client.heldout]
    assert sorted(client.domain for client in heldout) == sorted(domainnet.domain_names)


def test_an_outline_has_no_images() -> None:
    with pytest.raises(DataError, match="only outlined"):
        outline("cifar10").images.open(3)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(DataError, match="Did you mean 'cifar100'"):
        describe("cifar-100")


def test_outlines_are_subsampled_like_the_data() -> None:
    dataset = DATASETS.get("cifar100")(train_per_class=20, test_per_class=5).outline(0)  # type: ignore
    assert (len(dataset.train), len(dataset.test)) == (2_000, 500)
    assert np.bincount(dataset.labels[dataset.train]).tolist() == [20] * 100
