"""The rules with the paper's numbers, and every message about a setting that is impossible."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fedcue.data.client import drop_images, make_clients
from fedcue.data.dataset import Dataset
from fedcue.data.digits import Digits
from fedcue.data.partition import IID, ByDomain, Dirichlet, Natural, PartitionOptions, Pathological
from fedcue.data.sources import NoImages
from fedcue.errors import DataError, PartitionError
from fedcue.registry import PARTITIONS
from fedcue.rng import rng


def balanced(classes: int, train: int, test: int) -> Dataset:
    labels = np.concatenate([np.repeat(np.arange(classes), train), np.repeat(np.arange(classes), test)])
    names = tuple(f"class-{label}" for label in range(classes))
    return Dataset(
        "made", names, labels, np.arange(len(labels)) >= classes * train, NoImages("made", len(labels))
    )


CIFAR = balanced(100, 500, 100)


def test_pathological_cifar_has_ten_owners_per_class_with_similar_shares() -> None:
    partition = Pathological(clients=100, classes_per_client=10).split(CIFAR, rng(0, "partition"))
    train, test = partition.class_counts(CIFAR), partition.class_counts(CIFAR, "test")
    assert np.all((train > 0).sum(axis=0) == 10)
    assert np.all((train > 0).sum(axis=1) == 10)
    shares = train[train > 0] / 500
    assert shares.min() > 0.4 / (0.4 + 9 * 0.6) - 0.01
    assert shares.max() < 0.6 / (0.6 + 9 * 0.4) + 0.01
    assert np.abs(test / 100 - train / 500).max() < 0.02


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


def test_a_rare_class_has_fewer_owners_rather_than_an_error() -> None:
    dataset = Digits(imbalance=100).load(0)
    partition = Pathological(clients=20, classes_per_client=4).split(dataset, rng(0, "partition"))
    train = partition.class_counts(dataset)
    assert (train > 0).sum(axis=0)[9] == len(dataset.train[dataset.labels[dataset.train] == 9]) == 2


def test_partitions_do_not_depend_on_what_was_drawn_before() -> None:
    rule = Dirichlet(clients=10, alpha=0.3)
    first = rule.split(CIFAR, rng(5, "partition"))
    rng(5, "sampling").random(100)
    np.random.seed(1)
    second = rule.split(CIFAR, rng(5, "partition"))
    assert all(map(np.array_equal, first.train, second.train))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Pathological(clients=5, classes_per_client=10), "Use at least 10 clients or 20 classes per client"),
        (Pathological(clients=5, classes_per_client=101), "only 100 classes have training images"),
        (IID(clients=20_000), "20000 clients cannot share 10000 test images"),
        (Dirichlet(clients=9_000, alpha=0.3, flavour="class"), "need 90000, there are 50000"),
        (Dirichlet(clients=100, alpha=0.3, flavour="class", min_train=450), r"alpha=0\.3 with 100 clients"),
        (ByDomain(clients_per_domain=3), "has no domains"),
        (Natural(), "does not say whose the images are"),
    ],
)
def test_impossible_settings_say_why_and_what_to_do(rule: PartitionOptions, message: str) -> None:
    started = time.perf_counter()
    with pytest.raises(PartitionError, match=message):
        rule.split(CIFAR, rng(0, "partition"))
    assert time.perf_counter() - started < 20


def test_test_images_of_an_untrained_class_are_refused() -> None:
    dataset = balanced(3, 10, 5)
    kept = np.flatnonzero(dataset.is_test | (dataset.labels != 1))
    with pytest.raises(PartitionError, match="No training image shows class-1, yet test images do"):
        IID(clients=2).split(dataset.take(kept), rng(0, "partition"))


def test_too_few_owners_are_counted() -> None:
    dataset = balanced(2, 10, 4)
    owned = Dataset(
        "made",
        dataset.classes,
        dataset.labels,
        dataset.is_test,
        dataset.images,
        owners=np.arange(len(dataset)) % 2,
        owner_names=("a", "b"),
    )
    with pytest.raises(PartitionError, match="0 of 2 owners have at least 16 training and 1 test images"):
        Natural().split(owned, rng(0, "partition"))
    assert Natural(min_train=1, clients=1).split(owned, rng(0, "partition")).names in (("a",), ("b",))


def test_a_client_whom_rounding_leaves_without_test_images_gets_one() -> None:
    dataset = balanced(10, 100, 1)
    partition = IID(clients=10).split(dataset, rng(0, "partition"))
    assert [len(part) for part in partition.test] == [1] * 10


@pytest.mark.parametrize("name", PARTITIONS.builtin)
def test_every_partition_knows_its_name(name: str) -> None:
    assert PARTITIONS.get(name).name == name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "rule",
    [
        IID(clients=1018),
        Pathological(clients=1018, classes_per_client=10),
        Dirichlet(clients=1018, alpha=0.3),
        Dirichlet(clients=1018, alpha=0.3, flavour="class"),
    ],
)
def test_a_thousand_clients_and_classes_take_seconds(rule: PartitionOptions) -> None:
    started = time.perf_counter()
    partition = rule.split(balanced(1203, 100, 30), rng(0, "partition"))
    assert sum(map(len, partition.train)) == 120_300
    assert time.perf_counter() - started < 20


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
