"""Where images come from: files and arrays that travel between processes."""

from __future__ import annotations

import pickle
from pathlib import Path

from support.data_files import save_picture

from fedcue.data.image_sources import FileImages


def test_files_travel_to_another_process(tmp_path: Path) -> None:
    source = FileImages([save_picture(tmp_path / "x.png", 1)])
    assert pickle.loads(pickle.dumps(source)).content(0) == source.content(0)
