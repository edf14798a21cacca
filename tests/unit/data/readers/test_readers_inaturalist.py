"""The published lists of iNaturalist-User-120k, on a few pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.data_files import save_picture

from fedcue.data.partition import Natural
from fedcue.data.readers.public import INaturalist
from fedcue.errors import DataError
from fedcue.rng import rng


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ann has 20 pictures of two species, Bob 10 of a third; five test pictures belong to nobody."""
    train, test = ["user_id,image_id,class"], ["image_id,class"]
    for number in range(35):
        user, label = ("ann", number % 2 * 10) if number < 20 else ("bob", 2)
        if number >= 30:
            label = (0, 10, 10, 2, 0)[number - 30]
        save_picture(tmp_path / "train_val_images" / "Aves" / f"Species {label}" / f"img{number}.jpg", number)
        if number < 30:
            train.append(f"{user},img{number},{label}")
        else:
            test.append(f"img{number},{label}")
    lists = tmp_path / "inaturalist-user-120k"
    lists.mkdir()
    (lists / "federated_train_user_120k.csv").write_text("\n".join(train) + "\n")
    (lists / "test.csv").write_text("\n".join(test) + "\n")
    return tmp_path


def test_all_training_images_train_and_test_images_go_to_the_holders(root: Path) -> None:
    dataset = INaturalist(root=root).load(0)
    assert dataset.classes == ("0", "2", "10")
    assert dataset.owner_names == ("ann", "bob")
    assert (len(dataset.train), len(dataset.test)) == (30, 5)
    partition = Natural(min_train=16).split(dataset, rng(0, "partition"))
    assert partition.names == ("ann",)
    assert partition.class_counts(dataset).tolist() == [[10, 0, 10]]
    assert partition.class_counts(dataset, "test").tolist() == [[2, 0, 2]]
    assert partition.left_out.few_training == ("bob",)
    assert partition.left_out.test_images == 1, "nobody left trains on Bob's species"


def test_a_split_of_one_s_own_is_by_user_and_class(root: Path) -> None:
    dataset = INaturalist(root=root, split="own").load(0)
    assert len(dataset) == 30
    partition = Natural().split(dataset, rng(0, "partition"))
    assert partition.class_counts(dataset, "test").tolist() == [[2, 0, 2], [0, 2, 0]]
    assert np.isin(dataset.labels[partition.test[0]], dataset.labels[partition.train[0]]).all()


def test_without_the_test_list_the_message_says_what_to_do(root: Path) -> None:
    (root / "inaturalist-user-120k" / "test.csv").unlink()
    with pytest.raises(DataError, match=r"has no test\.csv.*data\.split=own"):
        INaturalist(root=root).read()
    assert len(INaturalist(root=root, split="own").read()) == 30


def test_missing_images_and_columns_are_named(root: Path) -> None:
    file = root / "inaturalist-user-120k" / "federated_train_user_120k.csv"
    file.write_text("user_id,image_id,class\nann,elsewhere,1\n")
    with pytest.raises(DataError, match=r"1 of 1 images .*elsewhere\.jpg"):
        INaturalist(root=root).read()
    file.write_text("user,image\nann,elsewhere\n")
    with pytest.raises(DataError, match="columns class, image_id, user_id"):
        INaturalist(root=root).read()


@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"user_id,image_id,class\n1,2\n", b"user_id,image_id,class\n1,,3\n"]
)
def test_a_damaged_list_is_refused(root: Path, text: bytes) -> None:
    file = root / "inaturalist-user-120k" / "federated_train_user_120k.csv"
    file.write_bytes(text)
    with pytest.raises(DataError, match=r"120k\.csv (cannot be read|must have a line per image)"):
        INaturalist(root=root).read()
