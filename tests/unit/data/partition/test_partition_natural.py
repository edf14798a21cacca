"""The clients that the data has: who takes part, who is tested on what, and what is left out."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from support import FACTS, SHARED_DATA
from support.data_files import real_files
from support.datasets import balanced, made

from fedcue.data.catalogue import describe
from fedcue.data.clients import make_clients
from fedcue.data.dataset import Dataset
from fedcue.data.partition import Natural
from fedcue.data.readers.public import INaturalist
from fedcue.errors import PartitionError
from fedcue.rng import rng


def user_sizes() -> list[int]:
    """Return the training images of every user of iNaturalist-User-120k, as they were counted."""
    with (FACTS / "inaturalist_user_sizes.csv").open() as file:
        rows = [(int(row["training_images"]), int(row["users"])) for row in csv.DictReader(file)]
    return [size for size, users in rows for _ in range(users)]


def inaturalist() -> Dataset:
    """Make a dataset of the users' true sizes and of as many test images without users as there are."""
    sizes = user_sizes()
    owners = np.repeat(np.arange(len(sizes)), sizes)
    generator = rng(0, "classes")
    labels = (7 * owners + generator.integers(0, 30, len(owners))) % 1203
    return made(
        np.r_[labels, np.arange(35_641) % 1203],
        np.arange(len(owners) + 35_641) >= len(owners),
        owners=np.r_[owners, np.full(35_641, -1)],
    )


def test_the_public_list_of_users_has_the_paper_s_clients() -> None:
    sizes = np.array(user_sizes())
    assert len(sizes) == 9_275
    assert sizes.sum() == 120_293
    assert (sizes >= 16).sum() == 1_018
    assert sizes[sizes >= 16].sum() == 96_748
    described = describe("inaturalist")
    assert [size for size, users in described.owner_sizes for _ in range(users)] == user_sizes()
    assert described.owners == 9_275


def test_inaturalist_has_the_paper_s_clients_and_images() -> None:
    dataset = inaturalist()
    partition = Natural(min_train=16, untested="train").split(dataset, rng(0, "partition"))
    assert len(partition) == 1_018
    assert partition.train_sizes.sum() == 96_748
    assert partition.train_sizes.min() >= 16
    assert partition.test_sizes.sum() == 35_641
    clients = make_clients(dataset, partition, heldout=0.1, seed=0)
    assert ((~clients.heldout).sum(), clients.heldout.sum()) == (916, 102)
    for client in clients[:40]:
        assert np.isin(client.test_labels, client.train_labels).all()


@pytest.mark.parametrize("split", ["official", "own"])
def test_an_outline_of_inaturalist_has_the_paper_s_clients(split: str) -> None:
    dataset = INaturalist(split=split).outline(0)
    partition = Natural(min_train=16).split(dataset, rng(0, "partition"))
    if split == "official":
        assert (len(partition), int(partition.train_sizes.sum())) == (1_018, 96_748)
        assert partition.test_sizes.sum() == 35_641
    else:
        assert len(partition) < 1_018  # a part of each user's images is no longer there to train on


@real_files("inaturalist/federated_train_user_120k.csv")
def test_the_real_lists_have_the_paper_s_clients() -> None:
    dataset = INaturalist(root=SHARED_DATA / "inaturalist").load(0)
    partition = Natural(min_train=16, untested="train").split(dataset, rng(0, "partition"))
    clients = make_clients(dataset, partition, heldout=0.1, seed=0)
    assert (len(clients), clients.heldout.sum()) == (1_018, 102)
    assert partition.train_sizes.sum() == 96_748


def test_test_images_without_an_owner_go_to_those_who_train_on_their_class() -> None:
    # class 0: nine images of owner 0, three of owner 1; class 1: owner 1 only; class 2: nobody trains on it
    labels = [0] * 12 + [1] * 4 + [0] * 8 + [1] * 2 + [2] * 3
    owners = [0] * 9 + [1] * 7 + [-1] * 13
    dataset = made(labels, np.arange(29) >= 16, owners=owners)
    partition = Natural().split(dataset, rng(0, "partition"))
    assert partition.class_counts(dataset, "test").tolist() == [[6, 0, 0], [2, 2, 0]]
    assert partition.left_out.test_images == 3
    assert partition.notes == ["3 test images show classes that no client trains on: not used."]


def test_owned_test_images_stay_with_their_owner() -> None:
    dataset = made([0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1], owners=[0, 1, 0, 0, 0, 1])
    partition = Natural().split(dataset, rng(0, "partition"))
    assert [part.tolist() for part in partition.test] == [[2, 3, 4], [5]]
    assert partition.notes == []


def test_training_images_without_an_owner_are_counted() -> None:
    dataset = made([0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 0], owners=[0, 0, -1, 0, -1, -1])
    (note,) = Natural().split(dataset, rng(0, "partition")).notes
    assert note.startswith("2 images of no client or domain: not used.")


def four_owners() -> Dataset:
    """Make owners with 5, 5, 1 and 4 training images and 2, 0, 2 and 1 test images."""
    train, test = [5, 5, 1, 4], [2, 0, 2, 1]
    owners = np.r_[np.repeat(np.arange(4), train), np.repeat(np.arange(4), test)]
    return made(np.zeros(20), np.arange(20) >= 15, owners=owners)


def test_who_is_left_out_is_counted_and_named() -> None:
    partition = Natural(min_train=2).split(four_owners(), rng(0, "partition"))
    assert partition.names == ("owner-0", "owner-3")
    assert partition.left_out.few_training == ("owner-2",)
    assert partition.left_out.few_test == ("owner-1",)
    small, untested = partition.notes
    assert small.startswith("1 client (owner-2) is left out: fewer than 2 training images")
    assert untested.startswith("1 client (owner-1) is left out: no test image")
    assert "partition.untested=train" in untested
    assert "data.test_share=0.2" in untested


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"min_test": 0}, [2, 0, 2, 1]),
        ({"untested": "train"}, [2, 0, 2, 1]),
        ({"min_test": 2, "untested": "train"}, [2, 0, 2, 0]),
        ({"min_test": 3, "untested": "train"}, [0, 0, 0, 0]),
    ],
)
def test_clients_without_test_images_may_train(options: dict[str, object], sizes: list[int]) -> None:
    partition = Natural.model_validate(options).split(four_owners(), rng(0, "partition"))
    assert partition.train_sizes.tolist() == [5, 5, 1, 4]
    assert partition.test_sizes.tolist() == sizes
    untested = [f"owner-{owner}" for owner, size in enumerate(sizes) if size == 0]
    assert all(name in partition.notes[0] for name in untested)
    assert partition.notes[0].endswith("no test image and cannot be tested.")


def test_make_clients_tells_who_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    dataset = four_owners()
    make_clients(dataset, Natural(min_train=2).split(dataset, rng(0, "partition")), seed=0)
    assert "1 client (owner-2) is left out" in caplog.text
    assert "1 client (owner-1) is left out" in caplog.text


def test_shared_test_images_are_shared_anew_when_a_client_drops_out() -> None:
    # owner 1 holds class 1 only, of which there are no test images
    dataset = made([0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1], owners=[0, 0, 1, 1, -1, -1, -1])
    partition = Natural().split(dataset, rng(0, "partition"))
    assert partition.names == ("owner-0",)
    assert partition.test_sizes.tolist() == [3]
    assert partition.left_out.few_test == ("owner-1",)


def test_too_few_owners_are_counted() -> None:
    dataset = balanced(2, 10, 4)
    owned = made(dataset.labels, dataset.is_test, owners=np.arange(len(dataset)) % 2)
    with pytest.raises(
        PartitionError, match="0 of 2 clients of the data have at least 16 training images and 1 test image"
    ):
        Natural(min_train=16).split(owned, rng(0, "partition"))
    one = Natural(clients=1).split(owned, rng(0, "partition"))
    assert one.names in (("owner-0",), ("owner-1",))
    assert one.notes == [], "who was not drawn was not left out"


def test_an_owner_with_just_enough_training_images_takes_part() -> None:
    partition = Natural(min_train=4).split(four_owners(), rng(0, "partition"))
    assert partition.names == ("owner-0", "owner-3")
    assert partition.left_out.few_training == ("owner-2",)
    assert Natural(min_train=5).split(four_owners(), rng(0, "partition")).names == ("owner-0",)


def test_owners_are_drawn_by_the_seed_and_listed_in_their_order() -> None:
    """As many test images of an owner as ever, and those of nobody go to the owners that were drawn."""
    labels, owners = np.arange(60) % 3, np.arange(60) % 6
    owned = made(labels, np.arange(60) >= 36, owners=owners)
    assert Natural(clients=3).split(owned, rng(0, "partition")).names == ("owner-0", "owner-1", "owner-2")
    names = {Natural(clients=4).split(owned, rng(seed, "partition")).names for seed in range(9)}
    assert len(names) > 3
    assert all(list(own) == sorted(own) for own in names)
    shared = made(labels, np.arange(60) >= 36, owners=np.where(np.arange(60) >= 48, -1, owners))
    partition = Natural(clients=3).split(shared, rng(0, "partition"))
    assert partition.names == ("owner-1", "owner-3", "owner-5")
    assert [part.tolist() for part in partition.test] == [
        [37, 43, 49, 52, 55, 58],
        [39, 45, 48, 51, 54, 57],
        [41, 47, 50, 53, 56, 59],
    ]


def test_a_class_that_one_image_shows_is_tested_too() -> None:
    dataset = made([0, 0, 1, 0, 1], [0, 0, 0, 1, 1], owners=[0, 0, 1, -1, -1])
    partition = Natural().split(dataset, rng(0, "partition"))
    assert [part.tolist() for part in partition.test] == [[3], [4]]
    assert partition.notes == []


def test_a_single_owner_is_enough_and_none_is_refused() -> None:
    dataset = made([0, 0, 0], [0, 0, 1], owners=[0, 0, 0])
    assert Natural().split(dataset, rng(0, "partition")).names == ("owner-0",)
    with pytest.raises(PartitionError, match="0 of 1 client of the data have .* 1 must have"):
        Natural(min_train=3).split(dataset, rng(0, "partition"))
    with pytest.raises(PartitionError, match="1 of 1 client of the data have .* 2 must have"):
        Natural(clients=2).split(dataset, rng(0, "partition"))


def test_training_images_of_nobody_are_counted_and_not_used() -> None:
    """Test images of nobody are shared out instead."""
    dataset = made([0] * 9, np.arange(9) >= 5, owners=[0, 0, 1, -1, -1, 0, 1, -1, -1])
    partition = Natural().split(dataset, rng(0, "partition"))
    assert partition.left_out.nobodys == 2
    assert partition.pool("train").tolist() == [0, 1, 2]
    assert partition.pool("test").tolist() == [5, 6, 7, 8]
