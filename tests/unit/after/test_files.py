"""Files, folders and patterns, and what is said of each file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fedcue.after import files
from fedcue.after.files import file_scores, find_images, predict_files
from fedcue.after.predict import Predictions
from fedcue.errors import ConfigError, DataError


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name in ("b.png", "a.png", "deep/c.png"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), len(name), np.uint8)).save(path)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    return tmp_path / "in"


class Brightest:
    """A model of two classes, whose probability is the brightness."""

    model = SimpleNamespace(architecture=SimpleNamespace(image_size=2))

    def scores(self, images: list[torch.Tensor], client: object) -> torch.Tensor:
        return torch.zeros(len(images), 2)

    def predict(
        self, images: list[torch.Tensor], priors: object, client: object, details: bool
    ) -> Predictions:
        bright = torch.stack(images).float().mean((1, 2, 3)) / 255
        return Predictions(
            ("dark", "bright"), torch.stack([1 - bright, bright], 1), {"level": bright[:, None]}
        )


def test_folders_and_patterns_become_files_each_once(pictures: Path) -> None:
    names = [path.name for path in find_images([str(pictures), str(pictures / "b.png")])]
    assert names == ["a.png", "b.png", "c.png"]
    assert [path.name for path in find_images([str(pictures / "**" / "[ac].png")])] == ["a.png", "c.png"]
    odd = pictures / "[1].png"
    odd.write_bytes(b"")
    assert find_images([str(odd)]) == [odd], "a file whose name looks like a pattern is a file"
    for nothing in (pictures / "deep" / "*.jpg", pictures / "empty"):
        (pictures / "empty").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="holds or matches no image"):
            find_images([str(nothing)])


def test_every_file_gets_its_row_whatever_the_chunks(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 2)
    done: list[int] = []
    rows = list(predict_files(Brightest(), find_images([str(pictures)]), progress=done.append))
    assert [row.path.name for row in rows] == ["a.png", "b.png", "c.png"]
    assert [row.probability for row in rows] == pytest.approx([250 / 255, 250 / 255, 245 / 255])
    assert [row.label for row in rows] == ["dark"] * 3
    assert done == [2, 1]


def test_a_file_that_cannot_be_read_is_named(pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    (pictures / "broken.png").write_bytes(b"\x89PNG broken")
    paths = find_images([str(pictures)])
    with pytest.raises(DataError, match=r"broken\.png .* or give --skip-unreadable"):
        list(predict_files(Brightest(), paths))
    assert [row.path.name for row in predict_files(Brightest(), paths, skip=True)] == [
        "a.png",
        "b.png",
        "c.png",
    ]
    assert "broken.png" in caplog.text
    caplog.clear()
    assert len(file_scores(Brightest(), paths, skip=True)) == 3
    assert not caplog.text, "it is said once, when files are classified"
    (pictures / "empty.png").write_bytes(b"")
    for classify in (lambda *a, **k: list(predict_files(*a, **k)), file_scores):
        with pytest.raises(DataError, match="None of the images can be read"):
            classify(Brightest(), [pictures / "broken.png", pictures / "empty.png"], skip=True)
