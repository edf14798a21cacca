from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from support.data_files import encoded, write_parquet

from fedcue.data.readers.parquet import Parquet
from fedcue.data.readers.parquet_images import ParquetImages
from fedcue.data.readers.public import CIFAR100, PACS, DomainNet, TinyImageNet
from fedcue.errors import DataError


def test_the_hub_layout_of_cifar100_is_read(tmp_path: Path) -> None:
    names = {"fine_label": ["apple", "baby"]}
    for split, start, number in (("train", 0, 6), ("test", 6, 4)):
        images = [encoded(start + row) for row in range(number)]
        columns = {"fine_label": [row % 2 for row in range(number)], "coarse_label": [0] * number}
        file = tmp_path / "cifar100" / f"{split}-00000-of-00001.parquet"
        write_parquet(file, columns, images, image="img", names=names)
    dataset = CIFAR100(root=tmp_path).load(0)
    assert dataset.classes == ("apple", "baby")
    assert dataset.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert dataset.test.tolist() == [6, 7, 8, 9]
    assert dataset.images.content(7) == encoded(7)
    assert dataset.images.open(7).size == (6, 6)


def test_images_are_read_in_any_order_and_across_row_groups(tmp_path: Path) -> None:
    files = [
        write_parquet(tmp_path / "a.parquet", {"label": [0] * 11}, [encoded(row) for row in range(11)]),
        write_parquet(
            tmp_path / "b.parquet",
            {"label": [0] * 200},
            [encoded(11 + row) for row in range(200)],
            rows_per_group=150,
        ),
    ]
    source = ParquetImages(files, "image")
    assert len(source) == 211
    for index in (0, 10, 11, 3, 210, 209, 90, 91, 160, 12):
        assert source.content(index) == encoded(index)
    assert source.describe(12) == f"row 1 of {files[1]}"
    assert pickle.loads(pickle.dumps(source)).content(12) == encoded(12)


def test_going_forwards_reads_each_batch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_parquet(tmp_path / "a.parquet", {"label": [0] * 300}, [b"x"] * 300, rows_per_group=200)
    source = ParquetImages([file], "image")
    seeks = []
    seek = source._seek
    monkeypatch.setattr(source, "_seek", lambda group: (seeks.append(group), seek(group)))
    for index in range(0, 300, 3):
        source.content(index)
    assert seeks == [0, 1]


def test_tiny_imagenet_tests_on_its_validation_images(tmp_path: Path) -> None:
    names = {"label": ["n01", "n02"]}
    write_parquet(tmp_path / "train.parquet", {"label": [0, 1]}, [encoded(0), encoded(1)], names=names)
    write_parquet(tmp_path / "valid.parquet", {"label": [1]}, [encoded(2)], names=names)
    assert TinyImageNet(root=tmp_path).load(0).test.tolist() == [2]


def test_domains_are_names_or_numbered_names(tmp_path: Path) -> None:
    names = {"label": ["dog", "cat"]}
    columns = {"label": [0, 1] * 10, "domain": ["photo", "sketch"] * 10}
    write_parquet(tmp_path / "a" / "train.parquet", columns, [encoded(n) for n in range(20)], names=names)
    pacs = PACS(root=tmp_path / "a").load(0)
    assert pacs.domain_names == ("photo", "sketch")
    assert len(pacs.test) == 4

    names = {"label": ["bird", "ant", "zebra"], "domain": ["clipart", "real"]}
    columns = {"label": [0, 1, 2, 0], "domain": [1, 0, 0, 1]}
    for split in ("train", "test"):
        write_parquet(tmp_path / "b" / split / "0000.parquet", columns, [encoded(1)] * 4, names=names)
    dataset = DomainNet(root=tmp_path / "b", classes=("bird", "zebra")).load(0)
    assert dataset.domain_names == ("clipart", "real")
    assert dataset.labels.tolist() == [0, 1, 0] * 2
    assert dataset.domains is not None
    assert dataset.domains.tolist() == [1, 0, 1] * 2


def test_own_columns_are_named_by_the_user(tmp_path: Path) -> None:
    columns = {"species": ["owl", "fox", "owl"], "hospital": [7, 7, 9]}
    write_parquet(
        tmp_path / "data.parquet", columns, [encoded(n) for n in range(3)], image="photo", plain=True
    )
    dataset = Parquet(root=tmp_path, image="photo", label="species", client="hospital").read()
    assert dataset.classes == ("fox", "owl")
    assert dataset.labels.tolist() == [1, 0, 1]
    assert dataset.owner_names == ("7", "9")
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [0, 0, 1]
    assert dataset.images.content(2) == encoded(2)


def test_splits_can_be_named(tmp_path: Path) -> None:
    for split, number in (("train", 3), ("validation", 2), ("test", 1)):
        write_parquet(tmp_path / f"{split}.parquet", {"label": [0] * number}, [encoded(1)] * number)
    assert len(Parquet(root=tmp_path).read().test) == 1
    chosen = Parquet(root=tmp_path, test_split="validation").read()
    assert (len(chosen.train), len(chosen.test)) == (3, 2)


def test_a_missing_column_is_named_with_the_nearest(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", {"label": [0]}, [encoded(0)])
    with pytest.raises(DataError, match=r"Unknown column 'labels'.*Did you mean 'label'\?.*data\.label"):
        Parquet(root=tmp_path, label="labels").read()


def test_what_is_wrong_in_a_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.root=FOLDER or data\.hub=OWNER/NAME"):
        Parquet().read()
    (tmp_path / "train.parquet").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"train\.parquet as Parquet"):
        Parquet(root=tmp_path).read()
    write_parquet(tmp_path / "train.parquet", {"label": [0, None]}, [encoded(0)] * 2)
    with pytest.raises(DataError, match="'label' is empty in 1 rows"):
        Parquet(root=tmp_path).read()
    write_parquet(
        tmp_path / "train.parquet", {"label": [0, 3]}, [encoded(0)] * 2, names={"label": ["a", "b"]}
    )
    with pytest.raises(DataError, match="outside its 2 names"):
        Parquet(root=tmp_path).read()
    (tmp_path / "train.parquet").rename(tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"no Parquet file of the split 'train' \(found: test\)"):
        Parquet(root=tmp_path).read()


def test_a_row_without_an_image_is_named(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "train.parquet", {"label": [0, 0]}, [encoded(0), None])
    with pytest.raises(DataError, match=r"row 1 of .*train\.parquet holds no image"):
        ParquetImages([file], "image").content(1)


def test_integers_without_names_become_consecutive_classes(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", {"label": [30, 10, 30]}, [encoded(0)] * 3)
    dataset = Parquet(root=tmp_path).read()
    assert dataset.classes == ("10", "30")
    assert np.array_equal(dataset.labels, [1, 0, 1])


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    for number in (0, 2):
        file = tmp_path / f"train-{number:05d}-of-00003-0a1b.parquet"
        write_parquet(file, {"label": [0]}, [encoded(number)])
    with pytest.raises(DataError, match=r"train-00001-of-00003\S* is missing"):
        Parquet(root=tmp_path).read()
    write_parquet(tmp_path / "train-00001-of-00003-9f9f.parquet", {"label": [0]}, [encoded(1)])
    assert len(Parquet(root=tmp_path).read()) == 3


def test_test_images_may_be_nobody_s(tmp_path: Path) -> None:
    images = [encoded(number) for number in range(3)]
    write_parquet(tmp_path / "train.parquet", {"label": [0, 1, 0], "user": ["b", "a", "b"]}, images)
    write_parquet(tmp_path / "test.parquet", {"label": [0, 1, 1]}, images)
    dataset = Parquet(root=tmp_path, client="user").read()
    assert dataset.owner_names == ("a", "b")
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [1, 0, 1, -1, -1, -1]
    write_parquet(tmp_path / "test.parquet", {"label": [0, 1, 1], "user": ["a", None, "a"]}, images)
    owners = Parquet(root=tmp_path, client="user").read().owners
    assert owners is not None
    assert owners.tolist() == [1, 0, 1, 0, -1, 0]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"is not an ordinary file\). Fetch the file again"):
        Parquet(root=tmp_path).load(0)
