"""A list of images: what it says holds, and what is wrong with it is said."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data_files import save_picture

from fedcue.data.dataset import Dataset
from fedcue.data.readers.manifest import Manifest
from fedcue.errors import DataError

ROWS = [
    ("a.png", "owl", "north", "photo", "train"),
    ("deep/b.png", "fox", "south", "sketch", ""),
    ("c.png", "owl", "", "photo", "test"),
]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number, (path, *_) in enumerate(ROWS):
        save_picture(tmp_path / path, number)
    return tmp_path


def check(dataset: Dataset, root: Path) -> None:
    assert dataset.classes == ("fox", "owl")
    assert dataset.labels.tolist() == [1, 0, 1]
    assert dataset.is_test.tolist() == [False, False, True]
    assert dataset.owner_names == ("north", "south")
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [0, 1, -1]
    assert dataset.domain_names == ("photo", "sketch")
    assert dataset.images.describe(1) == str(root / "deep" / "b.png")


def test_a_list_in_csv(pictures: Path) -> None:
    lines = ["path,label,client,domain,split", *(",".join(row) for row in ROWS)]
    (pictures / "manifest.csv").write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")
    check(Manifest(root=pictures).read(), pictures)
    check(Manifest(root=pictures / "manifest.csv").read(), pictures)


def test_a_list_in_parquet(pictures: Path) -> None:
    names = ("path", "label", "client", "domain", "split")
    columns = {name: [row[k] or None for row in ROWS] for k, name in enumerate(names)}
    pq.write_table(pa.table(columns), pictures / "manifest.parquet")
    check(Manifest(root=pictures).read(), pictures)


def test_a_list_of_paths_and_labels_gets_a_test_split(pictures: Path) -> None:
    rows = "".join(f"a.png,{label}\n" for label in ("owl", "fox") for _ in range(10))
    (pictures / "list.csv").write_text("path,label\n" + rows)
    dataset = Manifest(root=pictures / "list.csv").load(0)
    assert len(dataset.test) == 4
    assert dataset.owners is None
    assert dataset.domains is None


@pytest.mark.parametrize("mark", [";", "\t", ","])
def test_a_list_that_a_spreadsheet_wrote(pictures: Path, mark: str) -> None:
    lines = [("Path", " Label", "CLIENT ", "Domain", "Split"), *ROWS]
    text = "".join(mark.join(line) + "\r\n" for line in lines)
    (pictures / "manifest.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    check(Manifest(root=pictures).read(), pictures)


def test_quoted_fields_and_empty_lines_are_read(pictures: Path) -> None:
    (pictures / "manifest.csv").write_text('label,path\n"a; b, c",a.png\n\nfox,c.png\n')
    assert Manifest(root=pictures).read().classes == ("a; b, c", "fox")


def test_val_beside_test_is_left_aside_and_told(pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = "".join(f"a.png,owl,{split}\n" for split in ("train", "val", "Test", "val", "TRAINING"))
    (pictures / "manifest.csv").write_text("path,label,split\n" + rows)
    assert Manifest(root=pictures).load(0).is_test.tolist() == [False, True, False]
    assert "is tested on its split test. Splits left aside: val (2 images)." in caplog.text
    (pictures / "manifest.csv").write_text("path,label,split\na.png,owl,train\nb.png,owl,val\n")
    save_picture(pictures / "b.png", 9)
    assert Manifest(root=pictures).load(0).is_test.tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\na.png,owl\n", r"must begin with path,label.*it has file, label"),
        ("path,label\na.png,\n", "Row 1 of .* has no path or no label"),
        ("path,label,split\na.png,owl,holdout\n", "Row 1 .* split 'holdout'. Give train or test"),
        ("path,label\na.png,owl\nz.png,owl\n", r"1 of 2 images .* are not there .*z\.png"),
        ("", "must begin with path,label"),
        ("path,label\n", "has no images"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(pictures: Path, text: str, message: str) -> None:
    (pictures / "manifest.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        Manifest(root=pictures).read()


def test_a_place_without_a_list_is_refused(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent.csv", None):
        with pytest.raises(DataError, match=r"data\.root"):
            Manifest(root=root).read()
    (tmp_path / "manifest.csv").write_bytes(b"path,label\n\xff\xfe,x\n")
    with pytest.raises(DataError, match="UTF-8"):
        Manifest(root=tmp_path).read()
