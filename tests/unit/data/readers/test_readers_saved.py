"""Folders as Hugging Face's datasets saves them, written here with pyarrow alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from support.data_files import encoded, picture, save_picture

from fedcue.data.image_sources import decode
from fedcue.data.readers.saved import Saved
from fedcue.errors import DataError


def save(folder: Path, rows: list[dict[str, object]], files: int = 1) -> None:
    """Write what save_to_disk writes: Arrow streams, their list, and the features in the schema."""
    folder.mkdir(parents=True, exist_ok=True)
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    table = pa.Table.from_pylist(rows)
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    names = [f"data-{number:05d}-of-{files:05d}.arrow" for number in range(files)]
    for number, name in enumerate(names):
        part = table.slice(number * len(rows) // files, len(rows) // files)
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "x"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def rows(numbers: range, **more: object) -> list[dict[str, object]]:
    return [{"image": {"bytes": encoded(n), "path": None}, "label": n % 2, **more} for n in numbers]


def test_splits_are_read_with_their_class_names(tmp_path: Path) -> None:
    save(tmp_path / "train", rows(range(6), user="a"), files=2)
    save(tmp_path / "test", rows(range(6, 8)))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    dataset = Saved(root=tmp_path, client="user").load(0)
    assert dataset.classes == ("cat", "dog")
    assert dataset.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert dataset.test.tolist() == [6, 7]
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [0] * 6 + [-1] * 2
    assert [dataset.images.content(index) for index in (5, 0, 7)] == [encoded(n) for n in (5, 0, 7)]
    assert dataset.images.describe(7) == f"row 1 of {tmp_path / 'test'}"


def test_one_dataset_gets_a_test_split_and_files_are_opened(tmp_path: Path) -> None:
    save_picture(tmp_path / "x.png", 9)
    named = {"image": {"bytes": None, "path": "x.png"}, "label": 1}
    save(tmp_path, [*rows(range(9)), named])
    dataset = Saved(root=tmp_path).load(0)
    assert len(dataset.test) == 2
    assert (decode(dataset.images, 9, 6).transpose(1, 2, 0) == picture(9)).all()


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither state.json nor dataset_dict.json"):
        Saved(root=tmp_path).read()
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["all"]}))
    with pytest.raises(DataError, match=r"Unknown split 'train'. Known: all.*data\.train_split"):
        Saved(root=tmp_path).read()
    save(tmp_path, rows(range(2)))
    with pytest.raises(DataError, match="Unknown column 'fine'"):
        Saved(root=tmp_path, label="fine").read()
    (tmp_path / "data-00000-of-00001.arrow").write_bytes(b"broken")
    with pytest.raises(DataError, match="Cannot read .* as saved by datasets"):
        Saved(root=tmp_path).read()
    (tmp_path / "state.json").write_text(json.dumps({"_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(DataError, match="flatten_indices"):
        Saved(root=tmp_path).read()
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(DataError, match=r"Cannot read .*state\.json"):
        Saved(root=tmp_path).read()


def test_a_pipe_in_place_of_its_file_is_not_waited_for(tmp_path: Path) -> None:
    save(tmp_path, rows(range(4)))
    (file,) = tmp_path.glob("*.arrow")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match=r"is not an ordinary file\). Save it again"):
        Saved(root=tmp_path).load(0)
