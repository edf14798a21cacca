"""Files that anybody may have made: pipes, devices, users nobody knows, texts that grow in memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.memory import peak_bytes

from fedcue.after.predict import load
from fedcue.after.trained import load_memories
from fedcue.data.readers.manifest import Manifest
from fedcue.errors import ConfigError, DataError, RunFolderError
from fedcue.foreign import csv_of, expanded, ordinary, text_of
from fedcue.record.checkpoint import Checkpoints
from fedcue.report.run_files import is_written, json_object, last_words
from fedcue.report.run_files import tensors as tensors_of


@pytest.mark.timeout(60)  # what opens a pipe waits for ever
def test_nothing_waits_for_a_pipe(tmp_path: Path) -> None:
    for name in ("model.safetensors", "clients.safetensors", "config.toml", "a.ckpt"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "a.ckpt").rename(tmp_path / "checkpoints" / "round-000001.ckpt")
    with pytest.raises(OSError, match="not an ordinary file"):
        ordinary(tmp_path / "config.toml")
    with pytest.raises(OSError, match="not an ordinary file"):
        load_memories(tmp_path)
    with pytest.raises(RunFolderError, match="no usable checkpoint"):
        Checkpoints(tmp_path / "checkpoints", 2).newest()


@pytest.mark.timeout(60)
def test_a_model_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    about = {
        "format": "fedcue-model-1", "rounds": 1, "seed": 0, "classes": ["a", "b"], "clients": {}, "image_size": 8,
        "method": {"name": "head"}, "setting": {"classes": 2, "clients": 1, "width": 32, "depth": 4, "patch": 2},
        "backbone": {"name": "embedded"},
    }  # fmt: skip
    (tmp_path / "model.json").write_text(json.dumps(about))
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(RunFolderError, match="not an ordinary file"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["[],", '"a":{},', "1.5,"])
def test_a_text_that_would_fill_memory_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.json"
    path.write_text("[" + text * (96 * 2**20 // len(text)) + "0]")
    before = "from pathlib import Path; from fedcue.foreign import text_of"
    code = "try:\n    text_of(Path('model.json'))\nexcept ValueError as error:\n    assert '1024 MiB' in str(error)\n"
    assert peak_bytes(before, code + "else:\n    raise SystemExit(9)", tmp_path) < 2**27


def test_a_text_at_the_limit_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("[" + "[]," * 7_000_000 + "0]")
    before = "import json; from pathlib import Path; from fedcue.foreign import text_of"
    assert peak_bytes(before, "json.loads(text_of(Path('metrics.json')))", tmp_path) < 2**30


@pytest.mark.parametrize("size", [2**28 + 1, 2**40])
def test_a_file_of_holes_is_not_read(tmp_path: Path, size: int) -> None:
    for name in ("run.error.txt", "summary.json"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)
    with pytest.raises(OSError, match="larger than 256 MiB"):
        json_object(tmp_path / "summary.json")
    with pytest.raises(OSError, match="larger"):
        text_of(tmp_path / "summary.json")
    with pytest.raises(RunFolderError, match="larger"):
        tensors_of(tmp_path / "summary.json")
    (tmp_path / "manifest.csv").hardlink_to(tmp_path / "summary.json")
    with pytest.raises(DataError, match="larger than 256 MiB.*Parquet"):
        Manifest(root=tmp_path).read()
    assert "\n" not in last_words(tmp_path / "run")
    (tmp_path / "summary.json").rename(tmp_path / ".lock")
    assert not is_written(tmp_path)


def test_the_home_of_nobody_is_not_found(tmp_path: Path) -> None:
    assert expanded("~nobody-here/x") == Path("~nobody-here/x")
    for name in ("~nobody-here/x.png", "x" * 5000, "\0.png"):
        (tmp_path / "manifest.csv").write_text(f"path,label\n{name},a\n")
        with pytest.raises(DataError, match="are not there"):
            Manifest(root=tmp_path).read()
    with pytest.raises((ConfigError, DataError), match="root"):
        Manifest(root=Path("~nobody-here")).read()


def test_a_table_of_one_long_line_takes_no_more_memory_than_a_text(tmp_path: Path) -> None:
    with open(tmp_path / "clients.csv", "wb") as file:
        file.truncate(200 * 2**20)
    before = "from pathlib import Path; from fedcue.foreign import csv_of"
    code = "try:\n    csv_of(Path('clients.csv'))\nexcept ValueError as error:\n    assert 'no CSV' in str(error)"
    assert peak_bytes(before, code, tmp_path) < 2**30


def test_rows_are_read_one_after_the_other_and_a_mark_of_the_encoding_is_no_heading(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b"\xef\xbb\xbfpath,label\na,1\n" + b'"' + b"b" * 2**25)
    headings, rows = csv_of(path)
    assert headings == ["path", "label"]
    assert next(rows) == {"path": "a", "label": "1"}
    with pytest.raises(ValueError, match="no CSV"):
        next(rows)
