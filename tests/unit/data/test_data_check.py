from __future__ import annotations

from pathlib import Path

from support.data_files import save_picture

from fedcue.data.check import check
from fedcue.data.readers.digits import Digits
from fedcue.data.readers.image_folder import FederatedFolder, Folder


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
        ("empty class", "elk"),
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
    report = check(FederatedFolder(root=tmp_path))
    assert [(finding.kind, finding.where) for finding in report.findings] == [
        ("client without test images", "south")
    ]
    assert report.clients == 2


def test_a_clean_dataset_is_clean() -> None:
    report = check(Digits(train_per_class=5, test_per_class=2))
    assert report.clean
