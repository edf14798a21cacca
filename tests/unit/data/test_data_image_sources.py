"""Where images come from: files and arrays that travel between processes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from support.data_files import save_picture

from fedcue.data.image_sources import FileImages, decode
from fedcue.errors import DataError


def test_files_travel_to_another_process(tmp_path: Path) -> None:
    source = FileImages([save_picture(tmp_path / "x.png", 1)])
    assert pickle.loads(pickle.dumps(source)).content(0) == source.content(0)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(DataError, match="is not an ordinary file"):
        decode(FileImages([tmp_path / "x.png"]), 0, 6)
    with pytest.raises(OSError, match="ordinary"):
        FileImages([tmp_path / "x.png"]).content(0)


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "x.png", 1)
    with path.open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(DataError, match="is larger than 512 MiB"):
        decode(FileImages([path]), 0, 6)
