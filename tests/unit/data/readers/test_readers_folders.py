from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.data_files import encoded, save_picture, write_parquet

from fedcue.data.partition import Natural
from fedcue.data.readers.folders import FederatedFolder, Folder
from fedcue.data.readers.parquet import Parquet
from fedcue.data.readers.recognise import guess
from fedcue.errors import DataError
from fedcue.rng import rng


def test_a_folder_of_classes_gets_a_test_split(tmp_path: Path) -> None:
    for label in ("owl", "fox"):
        for number in range(10):
            save_picture(tmp_path / label / f"{number}.PNG", number)
    (tmp_path / "fox" / "notes.txt").write_text("not an image")
    (tmp_path / "fox" / "._0.png").write_text("a leftover of another system")
    (tmp_path / ".cache").mkdir()
    dataset = Folder(root=tmp_path).load(0)
    assert dataset.classes == ("fox", "owl")
    assert np.bincount(dataset.labels[dataset.test]).tolist() == [2, 2]
    assert len(dataset) == 20


@pytest.mark.parametrize("test", ["test", "val", "Validation"])
def test_a_folder_with_its_own_test_split(tmp_path: Path, test: str) -> None:
    save_picture(tmp_path / "train" / "owl" / "1.png", 1)
    save_picture(tmp_path / "train" / "fox" / "deeper" / "2.jpg", 2)
    save_picture(tmp_path / test / "fox" / "3.png", 3)
    dataset = Folder(root=tmp_path).load(0)
    assert dataset.labels.tolist() == [0, 1, 0]
    assert dataset.is_test.tolist() == [False, False, True]


def test_a_folder_per_client(tmp_path: Path) -> None:
    number = 0
    for client in ("north", "south"):
        for split, images in (("train", 3), ("test", 2)):
            for _ in range(images):
                number += 1
                save_picture(tmp_path / client / split / "owl" / f"{number}.png", number)
    (tmp_path / "south" / "train" / "fox").mkdir()
    dataset = FederatedFolder(root=tmp_path).load(0)
    assert dataset.classes == ("fox", "owl")
    partition = Natural(min_train=1).split(dataset, rng(0, "partition"))
    assert partition.names == ("north", "south")
    assert [len(part) for part in (*partition.train, *partition.test)] == [3, 3, 2, 2]


def test_the_options_are_guessed_from_the_folder(tmp_path: Path) -> None:
    save_picture(tmp_path / "a" / "owl" / "1.png", 1)
    save_picture(tmp_path / "b" / "client" / "train" / "owl" / "1.png", 1)
    write_parquet(tmp_path / "c" / "train.parquet", {"label": [0]}, [encoded(0)])
    assert [type(guess(tmp_path / name)) for name in "abc"] == [Folder, FederatedFolder, Parquet]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.root is missing"):
        Folder().read()
    with pytest.raises(DataError, match="is not a folder"):
        FederatedFolder(root=tmp_path / "absent").read()
    with pytest.raises(DataError, match="has no images"):
        Folder(root=tmp_path).read()
