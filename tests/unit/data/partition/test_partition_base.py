"""What all partitions have in common, and every message about a setting that is impossible."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from support.datasets import CIFAR, balanced, made

from fedcue.data.partition import IID, ByDomain, Dirichlet, Natural, Partition, PartitionOptions, Pathological
from fedcue.data.partition.base import LeftOut, counted
from fedcue.errors import PartitionError
from fedcue.registry import PARTITIONS
from fedcue.rng import rng


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
        (IID(clients=60_000), "60000 clients cannot share 50000 training images"),
        (ByDomain(clients_per_domain=3), "has no domains"),
        (Natural(), "does not say whose the images are"),
    ],
)
def test_impossible_settings_say_why_and_what_to_do(rule: PartitionOptions, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        rule.split(CIFAR, rng(0, "partition"))


def test_test_images_of_an_untrained_class_are_refused() -> None:
    dataset = balanced(3, 10, 5)
    kept = np.flatnonzero(dataset.is_test | (dataset.labels != 1))
    with pytest.raises(PartitionError, match="No training image shows class-1, yet test images do"):
        IID(clients=2).split(dataset.take(kept), rng(0, "partition"))


def test_too_few_images_to_test_on_are_explained() -> None:
    with pytest.raises(PartitionError, match="There is no test image. Give more: .*never its last image"):
        IID(clients=1).split(balanced(2, 1, 0), rng(0, "partition"))


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
def test_a_thousand_clients_share_a_thousand_classes(rule: PartitionOptions) -> None:
    partition = rule.split(balanced(1203, 100, 30), rng(0, "partition"))
    assert sum(map(len, partition.train)) == 120_300


def test_a_dataset_s_own_clients_are_kept_or_mixed() -> None:
    dataset = made([0, 1] * 10, [False] * 12 + [True] * 8, owners=[0, 0, 1, 1] * 5)
    mixed = IID(clients=4).split(dataset, rng(0, "partition"))
    assert (mixed.rule, mixed.instead_of, len(mixed)) == ("iid", "", 4)
    kept = IID(clients=4, own_clients="keep").split(dataset, rng(0, "partition"))
    assert (kept.rule, kept.instead_of) == ("natural", "iid")
    assert kept.names == ("owner-0", "owner-1")
    assert "own 2 clients are kept; partition=iid is not used" in kept.notes[0]
    unowned = IID(clients=4, own_clients="keep").split(balanced(2, 10, 5), rng(0, "partition"))
    assert (unowned.rule, len(unowned), unowned.notes) == ("iid", 4, [])


def digest(partition: Partition) -> str:
    parts = b"|".join(np.asarray(part, dtype="<i8").tobytes() for part in (*partition.train, *partition.test))
    return hashlib.sha256(parts).hexdigest()[:12]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (IID(clients=10), "200e5f5eae8a"),
        (Pathological(clients=10, classes_per_client=5), "f068723b3e20"),
        (Dirichlet(clients=10, alpha=0.3), "d476db7e54e5"),
        (Dirichlet(clients=10, alpha=0.5, flavour="class"), "af17a9a15c92"),
        (ByDomain(clients_per_domain=3, classes_per_client=8), "c92900fe9d98"),
        (Natural(), "fbee6149fecb"),
    ],
    ids=lambda value: value.name if isinstance(value, PartitionOptions) else "",
)
def test_a_seed_gives_the_same_clients_in_every_version(rule: PartitionOptions, expected: str) -> None:
    plain = balanced(20, 50, 10)
    number = np.arange(len(plain))
    owners = np.where(plain.is_test, -1, number % 7)
    dataset = made(plain.labels, plain.is_test, owners=owners, domains=number % 3)
    assert digest(rule.split(dataset, rng(0, "partition"))) == expected


def test_the_images_of_a_part_are_those_that_any_client_has_of_it() -> None:
    dataset = made([0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 1, 0], owners=[0, 0, 1, 1, 1, 0])
    partition = Natural().split(dataset, rng(0, "partition"))
    assert partition.pool("train").tolist() == [0, 2, 3, 5]
    assert partition.pool("test").tolist() == [1, 4]


def test_a_client_that_a_rule_leaves_untested_is_refused() -> None:
    """One class for each of two clients, and test images of one class alone."""
    dataset = made([0] * 6 + [1] * 6, [False] * 4 + [True] * 2 + [False] * 6)
    with pytest.raises(PartitionError, match="1 of 2 clients would have no test image"):
        Pathological(clients=2, classes_per_client=1).split(dataset, rng(0, "partition"))


def test_clients_are_named_by_number() -> None:
    partition = IID(clients=3).split(balanced(2, 10, 5), rng(0, "partition"))
    assert partition.names == ("client-0", "client-1", "client-2")
    assert partition.domains == ("", "", "")
    assert not partition.shares_images
    assert (IID(clients=3).planned_clients, Natural(clients=4).planned_clients) == (3, 4)
    assert (Natural().planned_clients, ByDomain().planned_clients) == (None, None)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1, "1 client (c0) is"),
        (2, "2 clients (c0, c1) are"),
        (5, "5 clients (c0, c1, c2, c3, c4) are"),
        (1006, "1,006 clients (c0, c1, c2, c3, c4 and 1,001 more) are"),
    ],
)
def test_clients_are_counted_and_the_first_five_named(number: int, said: str) -> None:
    assert counted([f"c{client}" for client in range(number)]) == said


def test_what_a_partition_leaves_out_is_said_with_the_setting_that_decides() -> None:
    assert {name for name, value in vars(LeftOut()).items() if value not in ((), 0)} == set()
    assert LeftOut().notes() == []
    left = LeftOut(("a",), ("b", "c"), 1234, nobodys=1, min_train=16, min_test=3)
    training, test, nobodys, images = left.notes()
    assert training == "1 client (a) is left out: fewer than 16 training images (partition.min_train)."
    assert test.startswith("2 clients (b, c) are left out: fewer than 3 test images. Give partition=natural")
    assert nobodys.startswith("1 image of no client or domain: not used.")
    assert images == "1,234 test images show classes that no client trains on: not used."


def test_natural_clients_are_chosen_by_their_own_settings_even_if_clients_are_kept() -> None:
    dataset = made([0, 1] * 10, [False] * 12 + [True] * 8, owners=[0] * 5 + [1] * 7 + [0, 1] * 4)
    kept = Natural(own_clients="keep", min_train=6).split(dataset, rng(0, "partition"))
    assert (kept.rule, kept.instead_of, kept.names) == ("natural", "", ("owner-1",))


def test_class_counts_are_of_all_classes_by_client() -> None:
    dataset = made([0, 0, 2, 1, 1, 2], [0, 1, 0, 0, 1, 1], owners=[0, 0, 0, 1, 1, 1])
    partition = Natural().split(dataset, rng(0, "partition"))
    assert partition.class_counts(dataset).tolist() == [[1, 0, 1], [0, 1, 0]]
    assert partition.class_counts(dataset, "test").tolist() == [[1, 0, 0], [0, 1, 1]]
    assert (partition.train_sizes.tolist(), partition.test_sizes.tolist()) == ([2, 1], [1, 2])
