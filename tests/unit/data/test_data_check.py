from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_files import save_picture

from fedcue.data.check import check
from fedcue.data.readers.digits import Digits
from fedcue.data.readers.image_folder import FederatedFolder, Folder
from fedcue.data.readers.manifest import Manifest


def test_everything_wrong_with_a_folder_is_listed(tmp_path: Path) -> None:
    for number in range(3):
        save_picture(tmp_path / "train" / "owl" / f"{number}.png", number)
    save_picture(tmp_path / "train" / "fox" / "3.png", 3)
    (tmp_path / "train" / "elk").mkdir()
    save_picture(tmp_path / "test" / "owl" / "same.png", 1)
    broken = tmp_path / "test" / "fox" / "broken.png"
    broken.parent.mkdir()
    broken.write_bytes(b"broken")
    seen: list[int] = []
    report = check(Folder(root=tmp_path), progress=lambda done, _: seen.append(done))
    found = {(finding.kind, Path(finding.where).name) for finding in report.findings}
    assert found == {
        ("class without training images", "elk"),
        ("class without test images", "elk"),
        ("duplicate", "same.png"),
        ("unreadable image", "broken.png"),
    }
    assert not report.clean
    assert (report.train, report.test, report.classes) == (4, 2, 3)
    assert seen == [1, 2, 3, 4, 5, 6]
    duplicate = next(finding for finding in report.findings if finding.kind == "duplicate")
    assert "1.png" in duplicate.why


def test_clients_without_test_images_are_listed(tmp_path: Path) -> None:
    save_picture(tmp_path / "north" / "train" / "owl" / "1.png", 1)
    save_picture(tmp_path / "north" / "test" / "owl" / "2.png", 2)
    save_picture(tmp_path / "south" / "train" / "owl" / "3.png", 3)
    save_picture(tmp_path / "north" / "train" / "elk" / "4.png", 4)
    save_picture(tmp_path / "north" / "test" / "elk" / "5.png", 5)
    report = check(FederatedFolder(root=tmp_path))
    assert [(finding.kind, finding.where) for finding in report.findings] == [
        ("client without test images", "south")
    ]
    assert "data.test_share" in report.findings[0].why
    assert report.clients == 2


def test_training_images_of_nobody_are_listed(tmp_path: Path) -> None:
    for number in range(6):
        save_picture(tmp_path / f"{number}.png", number)
    rows = [
        f"{number}.png,owl,{'' if number == 4 else 'north'},{'test' * (number > 4)}" for number in range(6)
    ]
    (tmp_path / "manifest.csv").write_text("\n".join(["path,label,client,split", *rows]))
    found = [one for one in check(Manifest(root=tmp_path)).findings if "without client" in one.kind]
    assert [(one.kind, one.where) for one in found] == [
        ("training image without client", str(tmp_path / "4.png"))
    ]


def test_a_clean_dataset_is_clean() -> None:
    report = check(Digits(train_per_class=5, test_per_class=2))
    assert report.clean


def test_one_class_is_found_wanting_and_long_lists_are_cut_kind_by_kind(tmp_path: Path) -> None:
    for number in range(5):
        save_picture(tmp_path / f"user{number}" / "train" / "owl" / "1.png", number)
    report = check(FederatedFolder(root=tmp_path))
    shown = {kind: (len(found), more) for kind, found, more in report.first_of_each_kind(3)}
    assert shown == {
        "one class": (1, 0),
        "class without test images": (1, 0),
        "client without test images": (3, 2),
    }


def test_why_an_image_cannot_be_read_does_not_repeat_where_it_is(tmp_path: Path) -> None:
    save_picture(tmp_path / "owl" / "1.png", 1)
    broken = tmp_path / "owl" / "broken.png"
    broken.write_bytes(b"broken")
    (finding,) = (one for one in check(Folder(root=tmp_path)).findings if one.kind == "unreadable image")
    assert finding.where == str(broken)
    assert finding.why == "it is no BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP image"


def test_classes_that_differ_in_capitals_or_spaces_alone_are_listed(tmp_path: Path) -> None:
    for name in ("Red fox", "red  Fox", "owl"):
        for number in range(3):
            save_picture(tmp_path / name / f"{number}.png", 10 * len(name) + number)
    found = [one for one in check(Folder(root=tmp_path)).findings if one.kind == "classes alike"]
    assert [one.where for one in found] == ["Red fox, red  Fox"]


@pytest.mark.parametrize("kind", ["<u2", ">u2"])
def test_images_of_16_bits_that_use_12_are_listed(tmp_path: Path, kind: str) -> None:
    ends = {"dark": 4095, "wide": 65535, "just": 4096}
    for name, end in ends.items():
        (tmp_path / name).mkdir()
        for number in range(3):
            pixels = np.linspace(number, end, 64, dtype=kind).reshape(8, 8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.tiff")
    found = [one for one in check(Folder(root=tmp_path)).findings if one.kind == "dark image"]
    assert [Path(one.where).parent.name for one in found] == ["dark"] * 3
