"""The reader that suits what lies in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.data_files import encoded, save_picture, write_parquet

from fedcue.data.readers.image_folder import Folder
from fedcue.data.readers.manifest import Manifest
from fedcue.data.readers.parquet import Parquet
from fedcue.data.readers.recognise import guess
from fedcue.data.readers.saved import Saved


@pytest.mark.parametrize("options", [Folder, Parquet, Manifest, Saved])
def test_the_options_are_guessed_from_the_folder(tmp_path: Path, options: type) -> None:
    if options is Folder:
        save_picture(tmp_path / "owl" / "1.png", 1)
    elif options is Parquet:
        write_parquet(tmp_path / "train.parquet", {"label": [0]}, [encoded(0)])
    elif options is Manifest:
        (tmp_path / "manifest.csv").write_text("path,label\n")
        assert type(guess(tmp_path / "manifest.csv")) is Manifest
    else:
        (tmp_path / "state.json").write_text("{}")
    assert type(guess(tmp_path)) is options
