"""One's own folders: recognised, told, and read otherwise if asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.data_files import save_picture

from fedcue.data.partition import Natural
from fedcue.data.readers import folders
from fedcue.data.readers.image_folder import FederatedFolder, Folder, recognise_layout
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


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.root is missing"):
        Folder().read()
    with pytest.raises(DataError, match="is not a folder"):
        FederatedFolder(root=tmp_path / "absent").read()
    with pytest.raises(DataError, match="has no images and no folders"):
        Folder(root=tmp_path).read()
    (tmp_path / "owl").mkdir()
    with pytest.raises(DataError, match=r"holds no image as CLASS/x\.jpg.*data\.layout=splits"):
        Folder(root=tmp_path).read()


def test_an_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "images.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"images\.zip is an archive\. Unpack it and give the folder"):
        Folder(root=tmp_path / "images.zip").read()


def test_domains_are_recognised_told_and_can_be_denied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, domain in enumerate(("photo", "sketch")):
        for label in ("dog", "cat"):
            for copy in range(5):
                save_picture(tmp_path / domain / label / f"{copy}.png", 10 * number + copy)
    dataset = Folder(root=tmp_path).load(0)
    assert dataset.classes == ("cat", "dog")
    assert dataset.domain_names == ("photo", "sketch")
    assert f"{tmp_path} is read as DOMAIN/CLASS/x.jpg: 2 classes, 2 domains." in caplog.text
    assert "Classes: cat, dog. Domains: photo, sketch." in caplog.text
    assert "data.layout=classes" in caplog.text
    assert "manifest.csv" not in caplog.text
    caplog.clear()
    denied = Folder(root=tmp_path, layout="classes").load(0)
    assert denied.classes == ("photo", "sketch")
    assert denied.domains is None
    clients = Folder(root=tmp_path, layout="clients").load(0)
    assert clients.owner_names == ("photo", "sketch")
    assert not caplog.text, "what was said need not be repeated"


@pytest.mark.parametrize(
    ("files", "layout"),
    [
        (["owl/1.png", "fox/1.png"], "classes"),
        (["owl/a/1.png", "fox/b/1.png"], "classes"),
        (["owl/a/1.png"], "classes"),
        (["owl/1.png", "owl/a/1.png", "fox/a/1.png"], "classes"),
        (["Train/owl/1.png", "test/owl/1.png"], "splits"),
        (["photo/owl/1.png", "sketch/owl/1.png", "sketch/fox/1.png"], "domains"),
        (["north/train/owl/1.png", "south/train/owl/1.png", "south/test/owl/2.png"], "clients"),
        (["north/Train/owl/1.png", "south/Test/owl/2.png"], "clients"),
        (["train/1.png", "bus/1.png", "car/2.png"], "classes"),
        (["owl/images/1.png", "fox/images/1.png"], "classes"),
        (["train/photo/owl/1.png", "train/photo/fox/1.png", "train/sketch/owl/1.png"], "split-domains"),
        (["train/owl/a/1.png", "train/fox/b/1.png"], "splits"),
    ],
)
def test_layouts_are_recognised(tmp_path: Path, files: list[str], layout: str) -> None:
    for number, file in enumerate(files):
        save_picture(tmp_path / file, number)
    assert recognise_layout(tmp_path) == layout


def test_folders_without_images_do_not_hide_what_the_others_stand_for(tmp_path: Path) -> None:
    for number, client in enumerate(("north", "south")):
        save_picture(tmp_path / client / "train" / "owl" / "1.png", number)
        save_picture(tmp_path / client / "train" / "fox" / "2.png", number + 2)
    for junk in ("__MACOSX", "@eaDir", "papers"):
        (tmp_path / junk).mkdir()
    (tmp_path / "papers" / "README.txt").write_text("not an image")
    (tmp_path / "north" / "train" / "__MACOSX").mkdir()
    dataset = Folder(root=tmp_path).load(0)
    assert recognise_layout(tmp_path) == "clients"
    assert dataset.classes == ("fox", "owl")
    assert dataset.owner_names == ("north", "south")


def test_domains_below_train_and_test_are_domains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, place in enumerate(("train/photo", "train/sketch", "test/photo", "test/sketch")):
        save_picture(tmp_path / place / "owl" / "1.png", number)
        save_picture(tmp_path / place / "fox" / "2.png", number + 4)
    dataset = Folder(root=tmp_path).load(0)
    assert dataset.classes == ("fox", "owl")
    assert dataset.domain_names == ("photo", "sketch")
    assert dataset.domains is not None
    assert dataset.domains[dataset.is_test].tolist() == [0, 0, 1, 1]
    assert "train/DOMAIN/CLASS/x.jpg" in caplog.text


def test_a_split_that_is_left_aside_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, split in enumerate(("train", "val", "test", "extra")):
        save_picture(tmp_path / split / "owl" / "1.png", number)
        save_picture(tmp_path / split / "fox" / "2.png", number + 4)
    assert len(Folder(root=tmp_path).load(0)) == 4
    assert "Folders left aside: extra (2 images), val (2 images)." in caplog.text


def test_a_split_that_is_left_aside_by_clients_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, place in enumerate(("a/train/owl", "a/val/owl", "a/test/owl", "b/train/fox", "b/test/fox")):
        save_picture(tmp_path / place / "1.png", number)
    for options in (Folder(root=tmp_path), FederatedFolder(root=tmp_path)):
        assert len(options.load(0)) == 4
    assert "Folders left aside: a/val (1 image)." in caplog.text


def test_training_and_testing_are_a_pair(tmp_path: Path) -> None:
    for number, split in enumerate(("training", "testing")):
        save_picture(tmp_path / split / "owl" / "1.png", number)
    assert Folder(root=tmp_path).read().is_test.tolist() == [False, True]


def test_an_image_that_no_folder_explains_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for place in (
        "overview.png",
        "photo/cover.png",
        "photo/dog/1.png",
        "sketch/dog/1.png",
        "sketch/cat/1.png",
    ):
        save_picture(tmp_path / place, len(place))
    assert len(Folder(root=tmp_path, layout="domains").load(0)) == 3
    assert "Images left aside, as no folder says what they show: overview.png, photo/cover.png" in caplog.text


def test_images_in_formats_that_are_not_read_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for place in ("owl/1.HEIC", "owl/2.heic", "fox/deep/3.avif"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(b"")
    counted = r"also holds 1 image \.avif, 2 images \.heic, which are left aside"
    with pytest.raises(DataError, match=f"holds no image as CLASS.*{counted}"):
        Folder(root=tmp_path).read()
    save_picture(tmp_path / "owl" / "1.png", 1)
    save_picture(tmp_path / "fox" / "1.jfif.png", 2)
    Folder(root=tmp_path).load(0)
    assert "also holds 1 image .avif, 2 images .heic, which are left aside" in caplog.text


def test_hidden_folders_and_leftovers_below_a_class_hold_no_images_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for place in (
        "owl/1.png",
        "owl/.thumbnails/1.png",
        "owl/@eaDir/1.png",
        "fox/deep/__MACOSX/1.png",
        "fox/2.png",
    ):
        save_picture(tmp_path / place, len(place))
    assert len(Folder(root=tmp_path).load(0)) == 2
    assert "left aside" not in caplog.text


def test_splits_without_classes_are_not_taken_for_classes(tmp_path: Path) -> None:
    for number, place in enumerate(("train/1.png", "test/2.png", "train/metadata/3.png")):
        save_picture(tmp_path / place, number)
    message = r"has images directly in test and train: .*test/CLASS/x\.jpg.*columns path,label,split"
    with pytest.raises(DataError, match=message):
        Folder(root=tmp_path).read()
    assert Folder(root=tmp_path, layout="classes").read().classes == ("test", "train")


def test_splits_below_classes_are_not_drawn_anew(tmp_path: Path) -> None:
    for number, place in enumerate(("owl/train", "owl/test", "fox/train", "fox/test")):
        save_picture(tmp_path / place / "1.png", number)
    with pytest.raises(
        DataError, match=r"is laid out as CLASS/train/x\.jpg, which is not read\. Make it train"
    ):
        Folder(root=tmp_path).read()


def test_a_folder_that_may_only_wrap_the_others_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_picture(tmp_path / "mine" / "owl" / "1.png", 1)
    save_picture(tmp_path / "mine" / "fox" / "1.png", 2)
    assert Folder(root=tmp_path).read().notes
    Folder(root=tmp_path).load(0)
    assert (
        f"It holds one folder: if that only wraps the others, give data.root={tmp_path / 'mine'}."
        in caplog.text
    )


def test_a_flat_folder_with_a_list_is_told_of_the_list(tmp_path: Path) -> None:
    save_picture(tmp_path / "IMG_1.png", 1)
    (tmp_path / "manifest.csv").write_text("path,label\nIMG_1.png,owl\n")
    with pytest.raises(DataError, match=r"no folders, but a list, manifest\.csv: give data=manifest"):
        Folder(root=tmp_path).read()


def test_a_flat_folder_is_explained(tmp_path: Path) -> None:
    save_picture(tmp_path / "IMG_1.png", 1)
    with pytest.raises(DataError, match=r"1 image such as IMG_1\.png and no folders.*manifest\.csv"):
        Folder(root=tmp_path).read()


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read everything")
def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    save_picture(tmp_path / "owl" / "deep" / "1.png", 1)
    save_picture(tmp_path / "fox" / "1.png", 1)
    (tmp_path / "owl" / "deep").chmod(0)
    with pytest.raises(DataError, match=r"deep may not be read: permission denied"):
        Folder(root=tmp_path).read()
    (tmp_path / "owl" / "deep").chmod(0o700)


def test_what_cannot_be_listed_is_an_error_not_a_smaller_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_picture(tmp_path / "owl" / "1.png", 1)

    def walk(folder: Path, onerror: Callable[[OSError], None]) -> Iterator[object]:
        onerror(PermissionError(13, "Permission denied", str(folder)))
        return iter(())

    monkeypatch.setattr("os.walk", walk)
    with pytest.raises(DataError, match="owl may not be read: permission denied"):
        Folder(root=tmp_path).read()


def test_a_list_that_lies_in_a_folder_of_images_is_not_passed_over_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, label in enumerate(("dog", "cat") * 3):
        save_picture(tmp_path / label / f"{number}.png", number)
    (tmp_path / "manifest.csv").write_text("path,label\n")
    Folder(root=tmp_path).load(0)
    assert "Its manifest.csv is left aside: data=manifest reads it." in caplog.text


def test_images_come_in_the_order_of_their_paths_whatever_the_disk_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [("b", ["2.png", "1.png", "notes.txt"]), ("a", ["9.png", "10.png"])]
    walked = [(str(tmp_path / "owl" / name), [], files) for name, files in places]
    monkeypatch.setattr("os.walk", lambda folder, onerror: iter(walked))
    found = [path.relative_to(tmp_path / "owl").as_posix() for path in folders.images(tmp_path / "owl")]
    assert found == ["a/10.png", "a/9.png", "b/1.png", "b/2.png"]
