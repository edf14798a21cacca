"""Run folders from a stranger, read by the real commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from PIL import Image
from support import SMALL

import fedcue
from fedcue.config.layers import dump, load

MODULE = """
import pathlib
from fedcue.methods.head import HeadTuning
pathlib.Path(__file__).with_suffix(".imported").touch()
class Mine(HeadTuning):
    pass
"""


MORE = {"predict": ["x.png"], "push": ["user/repo"], "export": ["--out", "out"]}
"""What a verb wants beside the folder."""


def command(cwd: Path, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder; ``path`` is added to the import path."""
    given = [str(path)] if path else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*given, str(Path(fedcue.__file__).parents[1])]),
    }
    whole = [sys.executable, "-m", "fedcue", *arguments]
    return subprocess.run(
        whole, capture_output=True, text=True, cwd=cwd, env=environment, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a module of the user's and a run of its method."""
    place = tmp_path_factory.mktemp("trust")
    (place / "mine").mkdir()
    (place / "mine" / "my_method.py").write_text(MODULE)
    Image.new("RGB", (8, 8)).save(place / "x.png")
    settings = [*SMALL, "rounds=1", "workers=1", "method=my_method:Mine"]
    done = command(place, "run", *settings, "--out", "run", path=place / "mine")
    assert done.returncode == 0, done.stderr
    (place / "mine" / "my_method.imported").unlink()
    return place


@pytest.mark.parametrize("verb", ["resume run", "evaluate run --out again --overwrite", "predict run x.png"])
def test_a_class_is_imported_only_if_the_command_line_trusts_it(place: Path, verb: str) -> None:
    refused = command(place, *verb.split(), path=place / "mine")
    assert refused.returncode == 2
    assert "--trust my_method:Mine" in refused.stderr
    assert not (place / "mine" / "my_method.imported").exists()
    done = command(place, *verb.split(), "--trust", "my_method:Mine", path=place / "mine")
    assert done.returncode == 0, done.stderr
    (place / "mine" / "my_method.imported").unlink()
    assert command(place, *verb.split(), path=place / "mine").returncode == 2  # remembered nowhere


@pytest.mark.parametrize("verb", ["resume", "evaluate", "predict", "export", "push"])
def test_nothing_is_imported_from_the_folder_it_is_started_in(tmp_path: Path, verb: str) -> None:
    for name in ("typer", "torch", "rich", "numpy", "my_method"):
        (tmp_path / f"{name}.py").write_text(MODULE)
    config = dump(load("default", SMALL)) | {"method": {"name": "my_method:Mine"}}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config))
    said = command(tmp_path, verb, ".", *MORE.get(verb, []), "--trust", "my_method:Mine")
    assert said.returncode == 2
    assert not list(tmp_path.glob("*.imported"))


def test_a_resumed_run_tells_no_tracker_over_the_network_unless_asked(tmp_path: Path) -> None:
    config = dump(load("default", SMALL)) | {"log": ["wandb"]}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config))
    said = command(tmp_path, "resume", ".")
    assert said.returncode == 2
    assert "log=wandb" in said.stderr
    assert "--fetch" in said.stderr
