from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.data_files import save_picture

from fedcue.data.catalogue import CATALOGUE
from fedcue.data.image_sources import decode
from fedcue.data.readers.public import (
    CIFAR10,
    CIFAR100,
    PACS,
    DomainNet,
    OfficeHome,
    TinyImageNet,
)
from fedcue.errors import DataError


def cifar_records(labels: list[tuple[int, ...]]) -> bytes:
    pixels = [
        np.random.default_rng(number).integers(0, 256, 3072, dtype=np.uint8) for number in range(len(labels))
    ]
    return b"".join(bytes(label) + row.tobytes() for label, row in zip(labels, pixels, strict=True))


def test_the_binary_archive_of_cifar100(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(cifar_records([(19, 1), (3, 0), (4, 1)]))
    (folder / "test.bin").write_bytes(cifar_records([(0, 0)]))
    (folder / "fine_label_names.txt").write_text("apple\naquarium_fish\n\n")
    for root in (tmp_path, folder):
        dataset = CIFAR100(root=root).load(0)
        assert dataset.labels.tolist() == [1, 0, 1, 0]
        assert dataset.test.tolist() == [3]
        assert dataset.classes == ("apple", "aquarium_fish")
    red = np.random.default_rng(2).integers(0, 256, 3072, dtype=np.uint8)[:1024].reshape(32, 32)
    assert np.array_equal(decode(dataset.images, 2, 32)[0], red)
    assert dataset.images.describe(3) == f"image 0 of {folder / 'test.bin'}"


def test_the_binary_archive_of_cifar10(tmp_path: Path) -> None:
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(cifar_records([(number,), (0,)]))
    (tmp_path / "test_batch.bin").write_bytes(cifar_records([(9,)]))
    dataset = CIFAR10(root=tmp_path).load(0)
    assert dataset.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 9]
    assert dataset.test.tolist() == [10]
    assert dataset.classes[9] == "9"


def test_a_broken_or_pickled_cifar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(cifar_records([(0, 0)])[:-1])
    (tmp_path / "test.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"train\.bin is cut off"):
        CIFAR100(root=tmp_path).read()
    (tmp_path / "train.bin").unlink()
    with pytest.raises(DataError, match=r"has no train\.bin"):
        CIFAR100(root=tmp_path).read()
    (tmp_path / "test.bin").unlink()
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(DataError, match=r"pickled python version is not read\), found cifar-100-python"):
        CIFAR100(root=tmp_path).read()


def test_the_folders_of_tiny_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    for number, name in enumerate(("n02", "n01")):
        save_picture(root / "train" / name / "images" / f"{name}_0.png", number)
        (root / "train" / name / f"{name}_boxes.txt").write_text("")
        save_picture(root / "val" / "images" / f"val_{number}.png", 10 + number)
    (root / "val" / "val_annotations.txt").write_text(
        "val_0.png\tn02\t0\t0\t9\t9\nval_1.png\tn01\t0\t0\t9\t9\n"
    )
    dataset = TinyImageNet(root=tmp_path).load(0)
    assert dataset.classes == ("n01", "n02")
    assert dataset.labels.tolist() == [0, 1, 1, 0]
    assert dataset.is_test.tolist() == [False, False, True, True]
    assert decode(dataset.images, 2, 6).shape == (3, 6, 6)


@pytest.mark.parametrize("listed", [b"val_0.png n02\n", b"\xff\xfe", b"\n"])
def test_a_damaged_list_of_tiny_imagenet_is_refused(tmp_path: Path, listed: bytes) -> None:
    save_picture(tmp_path / "train" / "n02" / "images" / "n02_0.png", 1)
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "val_annotations.txt").write_bytes(listed)
    with pytest.raises(DataError, match=r"val_annotations\.txt .*Fetch it again"):
        TinyImageNet(root=tmp_path).read()


def test_the_lists_of_domainnet(tmp_path: Path) -> None:
    number = 0
    for domain in CATALOGUE["domainnet"].domains:
        for split in ("train", "test"):
            lines = []
            for label, name in enumerate(("aircraft_carrier", "bird", "zebra")):
                number += 1
                path = f"{domain}/{name}/{domain}_{number}.png"
                save_picture(tmp_path / path, number)
                lines.append(f"{path} {label}\n")
            (tmp_path / f"{domain}_{split}.txt").write_text("".join(lines))
    dataset = DomainNet(root=tmp_path, classes=("bird", "zebra")).load(0)
    assert len(dataset.train) == len(dataset.test) == 12
    places = [Path(dataset.images.describe(int(image))).stem for image in dataset.test]
    assert {int(place.rpartition("_")[2]) % 6 for place in places} == {5, 0}, "of six, the last three"
    assert dataset.domain_names == CATALOGUE["domainnet"].domains
    assert dataset.domains is not None
    assert np.bincount(dataset.domains).tolist() == [4] * 6
    assert "zebra" in dataset.images.describe(int(np.flatnonzero(dataset.labels == 1)[0]))
    (tmp_path / "sketch_test.txt").unlink()
    with pytest.raises(DataError, match=r"no sketch_test\.txt"):
        DomainNet(root=tmp_path).read()


@pytest.mark.parametrize(
    ("options", "domains", "below"),
    [
        (PACS, ("art_painting", "cartoon", "photo", "sketch"), "PACS/kfold"),
        (OfficeHome, ("Art", "Clipart", "Product", "RealWorld"), "OfficeHomeDataset_10072016"),
    ],
)
def test_folders_of_domains(tmp_path: Path, options: type, domains: tuple[str, ...], below: str) -> None:
    for number, domain in enumerate(domains):
        for label in ("cup", "bed"):
            for copy in range(5):
                save_picture(tmp_path / below / domain / label / f"{copy}.png", 10 * number + copy)
    dataset = options(root=tmp_path).load(0)
    assert dataset.domain_names == CATALOGUE[options.name].domains
    assert dataset.classes == ("bed", "cup")
    assert np.bincount(dataset.domains).tolist() == [10] * 4
    assert len(dataset.test) == 8


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    expected = (
        r"does not hold domainnet: expected Parquet files as on the hub or DOMAIN_train\.txt.*found notes"
    )
    with pytest.raises(DataError, match=expected):
        DomainNet(root=tmp_path).read()
    with pytest.raises(DataError, match="is not a folder"):
        DomainNet(root=tmp_path / "absent").read()


@pytest.mark.parametrize(
    ("records", "says"), [(b"", "is cut off"), (bytes([100, 100]) + bytes(3072), "beyond its 100 classes")]
)
def test_a_binary_archive_of_nothing_or_of_unknown_classes_is_refused(
    tmp_path: Path, records: bytes, says: str
) -> None:
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(records)
    with pytest.raises(DataError, match=says):
        CIFAR100(root=tmp_path).load(0)
