"""Which settings held for which rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcue.errors import RunFolderError
from fedcue.record.files import earlier_settings, keep_settings_until, settings_at
from fedcue.record.folder import RunFolder


def keep(folder: Path, round_: int) -> None:
    keep_settings_until(folder, settings_at(folder, round_).read_text(), round_)


def names(folder: Path) -> dict[int, str]:
    return {last: path.read_text() for last, path in earlier_settings(folder)}


def test_settings_are_kept_until_the_round_they_held_for(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("A")
    assert settings_at(tmp_path, 4) == tmp_path / "config.toml"
    keep(tmp_path, 4)
    (tmp_path / "config.toml").write_text("B")
    assert names(tmp_path) == {4: "A"}
    keep(tmp_path, 4)  # stopped again before a round was done: B held for none
    assert names(tmp_path) == {4: "A"}
    keep(tmp_path, 9)
    assert names(tmp_path) == {4: "A", 9: "B"}


def test_a_run_that_goes_back_forgets_settings_of_rounds_it_does_again(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("B")
    (tmp_path / "config-round-000010.toml").write_text("A")
    keep(tmp_path, 8)
    assert names(tmp_path) == {8: "A"}
    keep_settings_until(tmp_path, None, 5)  # with the settings of the start again
    assert names(tmp_path) == {}


def test_kept_settings_belong_to_the_run_and_go_with_it(tmp_path: Path) -> None:
    for name in ("config.toml", "config-round-000010.toml"):
        (tmp_path / name).write_text("")
    folder = RunFolder(tmp_path)
    folder.open(overwrite=True)
    folder.close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("resume", [True, False])
def test_files_that_a_crash_left_half_written_are_removed(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "config.toml").write_text("")
    halves = [".config.toml.part", "checkpoints/.round-000001.ckpt.part", "snapshots/.x.safetensors.part"]
    for half in halves:
        (tmp_path / half).write_text("half")
    folder = RunFolder(tmp_path)
    folder.open(resume=resume, overwrite=not resume)
    folder.close()
    assert not list(tmp_path.rglob("*.part"))
    assert (tmp_path / "config.toml").exists() == resume


def test_a_file_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "film.part").write_text("half a film")
    with pytest.raises(RunFolderError, match="film.part"):
        RunFolder(tmp_path).open(overwrite=True)
    assert (tmp_path / "film.part").exists()
