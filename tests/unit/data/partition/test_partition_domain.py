"""Clients of one domain each."""

from __future__ import annotations

import numpy as np
import pytest
from support.datasets import made

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import NoImages
from fedcue.data.partition import ByDomain
from fedcue.data.partition.base import assemble
from fedcue.errors import PartitionError
from fedcue.rng import rng


def test_pacs_like_owner_counts_differ_by_at_most_one() -> None:
    labels = np.tile(np.repeat(np.arange(7), 60), 4)
    domains = np.repeat(np.arange(4), 7 * 60)
    is_test = np.arange(len(labels)) % 5 == 0
    classes, styles = tuple("abcdefg"), tuple("wxyz")
    images = NoImages("made", len(labels))
    dataset = Dataset("made", classes, labels, is_test, images, domains=domains, domain_names=styles)
    partition = ByDomain(clients_per_domain=10, classes_per_client=5).split(dataset, rng(0, "partition"))
    train = partition.class_counts(dataset)
    for start in range(0, 40, 10):
        owners = (train[start : start + 10] > 0).sum(axis=0)
        assert owners.sum() == 50
        assert owners.max() - owners.min() <= 1
    assert partition.names[:2] == ("w-0", "w-1")
    assert partition.domains == tuple(style for style in styles for _ in range(10))


def test_a_client_has_a_domain_if_all_its_training_images_are_of_one() -> None:
    dataset = made(np.zeros(8), np.arange(8) >= 6, domains=[0, 0, 0, 1, -1, -1, 0, 1])
    parts = [np.array(part) for part in ([0, 1], [2, 3], [4, 5])]
    assert assemble(dataset, parts, parts, ("one", "both", "unknown")).domains == ("domain-0", "", "")


def test_images_of_no_domain_are_counted() -> None:
    dataset = made(np.zeros(6), np.arange(6) >= 4, domains=[0, 0, 0, -1, 0, -1])
    (note,) = ByDomain().split(dataset, rng(0, "partition")).notes
    assert note.startswith("2 images of no client or domain: not used.")


def test_a_client_that_is_alone_in_its_domain_has_its_name() -> None:
    labels, is_test = np.tile([0, 0, 1, 1], 4), np.tile([False, True], 8)
    dataset = made(labels, is_test, domains=np.repeat([0, 1], 8))
    alone = ByDomain(clients_per_domain=1).split(dataset, rng(0, "partition"))
    assert (alone.names, alone.domains) == (("domain-0", "domain-1"), ("domain-0", "domain-1"))
    two = ByDomain(clients_per_domain=2).split(dataset, rng(0, "partition"))
    assert two.names == ("domain-0-0", "domain-0-1", "domain-1-0", "domain-1-1")


def test_a_domain_with_too_few_images_is_named() -> None:
    dataset = made([0] * 12, np.arange(12) % 2 == 1, domains=[0] * 10 + [1] * 2)
    with pytest.raises(PartitionError, match="3 clients cannot share 1 training images of domain 'domain-1'"):
        ByDomain(clients_per_domain=3).split(dataset, rng(0, "partition"))


def test_images_of_no_domain_are_counted_and_not_used() -> None:
    dataset = made([0] * 12, np.arange(12) % 2 == 1, domains=[0] * 5 + [-1] * 3 + [1] * 4)
    partition = ByDomain().split(dataset, rng(0, "partition"))
    assert partition.left_out.nobodys == 3
    assert partition.pool("train").tolist() == [0, 2, 4, 8, 10]


@pytest.mark.parametrize("classes_per_client", [None, 2])
def test_clients_that_their_domain_cannot_give_every_class_are_told(classes_per_client: int | None) -> None:
    """Three clients share eight images of one class; of the other, the second domain has two."""
    labels = [0] * 8 + [1] * 8 + [0] * 8 + [1] * 3
    is_test = np.arange(27) % 4 == 3
    is_test[-1] = True
    dataset = made(labels, is_test, domains=[0] * 16 + [1] * 11)
    rule = ByDomain(clients_per_domain=3, classes_per_client=classes_per_client)
    partition = rule.split(dataset, rng(0, "partition"))
    lacking = np.flatnonzero((partition.class_counts(dataset) == 0).any(1)).tolist()
    assert len(lacking) == 1
    (note,) = partition.notes
    assert note.startswith(f"1 client ({partition.names[lacking[0]]}) holds fewer classes than meant")
    assert note.endswith("(partition.clients_per_domain).")
