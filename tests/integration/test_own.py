"""``fedcue run own`` as a user types it: from a folder to a model, a report and a prediction."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.data_files import save_picture
from typer.testing import CliRunner, Result

from fedcue.cli.main import app
from fedcue.errors import BackboneError, DataError

QUICK = ["backbone=embedded", "workers=1", "rounds=1"]


def fedcue(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two domains of two classes with ten images each."""
    root = tmp_path / "my pictures"
    places = [f"{domain}/{label}" for domain in ("photo", "sketch") for label in ("cat", "dog")]
    for number, place in enumerate(places):
        for copy in range(10):
            save_picture(root / place / f"{copy}.png", 100 * number + copy)
    return root


def test_from_a_folder_to_a_model_a_report_and_a_prediction(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = fedcue("run", "own", f"data.root={pictures}", *QUICK, "--out", str(out))
    assert done.exit_code == 0, done.output
    for part in (
        "checked   40 images, 2 classes: nothing is wrong",
        "plan      about ",
        " travel in all",
        "clients   2 train / 0 held out, partition domain",
        "mean accuracy ",
        "photo ",
        "mostly mistaken for",
        "taken for",
        f"model     {out / 'model.safetensors'}",
        f"report    {out}.html",
        f"fedcue predict {out} IMAGE.jpg --client 0",
        f"fedcue compare own 'data.root={pictures}' backbone=embedded workers=1 rounds=1 --methods",
    ):
        assert part in done.output
    assert "<html" in Path(f"{out}.html").read_text()[:500]
    command = next(line for line in done.output.splitlines() if "fedcue predict" in line).split()
    image = str(pictures / "photo" / "cat" / "0.png")
    said = fedcue(*(image if word == "IMAGE.jpg" else word for word in command[1:]))
    assert said.exit_code == 0, said.output
    assert "cat" in said.output or "dog" in said.output


def test_unreadable_images_end_it_before_anything_is_trained(pictures: Path, tmp_path: Path) -> None:
    (pictures / "photo" / "cat" / "bad.png").write_bytes(b"no picture")
    done = fedcue("run", "own", f"data.root={pictures}", *QUICK, "--out", str(tmp_path / "run"))
    assert isinstance(done.exception, DataError)
    assert "1 image cannot be read. Mend or remove them" in str(done.exception)
    assert "unreadable image" in done.output
    assert not (tmp_path / "run").exists()


def test_a_program_gets_json_alone(pictures: Path, tmp_path: Path) -> None:
    done = fedcue("run", "own", f"data.root={pictures}", *QUICK, "--out", str(tmp_path / "run"), "--json")
    assert done.stdout.startswith("{")
    assert not (tmp_path / "run.html").exists()


def test_a_backbone_that_cannot_be_fetched_is_told_of_before_the_images_are_read(pictures: Path) -> None:
    done = fedcue("run", "own", f"data.root={pictures}")
    assert isinstance(done.exception, BackboneError)
    assert "give backbone=FOLDER; the embedded backbone needs no network" in str(done.exception)
    assert "checked" not in done.output


def test_images_of_one_class_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    for copy in range(20):
        save_picture(tmp_path / "pictures" / "cat" / f"{copy}.png", copy)
    done = fedcue("run", "own", f"data.root={tmp_path / 'pictures'}", *QUICK, "--out", str(tmp_path / "run"))
    assert isinstance(done.exception, DataError)
    assert "nothing to tell apart" in str(done.exception)
    assert not (tmp_path / "run").exists()
