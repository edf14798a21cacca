"""The exported folder, as a stranger uses it."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import fedcue
from fedcue.after.images import read_images
from fedcue.errors import CannotWrite, ConfigError, DataError, RunFolderError
from fedcue.export import files, write
from fedcue.export.card import model_card, rendered
from fedcue.export.push import staged
from fedcue.export.write import export

WITHOUT = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert not {"torch", "fedcue"} & set(sys.modules), "only onnxruntime, numpy and Pillow"
"""


@pytest.fixture(scope="module")
def run(finished: Callable[..., Path]) -> Path:
    return finished("cue")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return pictures of every kind that is treated in a way of its own: 16 bits, see-through, turned."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    wide = Image.fromarray(rng.integers(0, 2**16, (30, 20), dtype=np.uint16))
    colour = Image.fromarray(rng.integers(0, 256, (30, 20, 3), dtype=np.uint8))
    clear = Image.fromarray(rng.integers(0, 256, (30, 20, 4), dtype=np.uint8))
    kinds = {
        "wide": wide,
        "colour": colour,
        "clear": clear,
        "grey": colour.convert("L"),
        "few": clear.quantize(8),
    }
    for name, picture in kinds.items():
        picture.save(folder / f"{name}.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    colour.save(folder / "turned.png", exif=turned)
    return sorted(folder.iterdir())


def classified(
    folder: Path, pictures: list[Path], *start: str, options: tuple[str, ...] = ()
) -> list[list[str]]:
    command = [sys.executable, *start, str(folder / "classify.py"), *options, *map(str, pictures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return list(csv.reader(io.StringIO(done.stdout, newline=""), delimiter="\t"))


def expected(run: Path, pictures: list[Path], **how: Any) -> list[list[str]]:
    found = fedcue.load(run).predict(list(pictures), **how)
    most = found.probabilities.max(1).values.tolist()
    return [
        [str(p), label, f"{value:.1%}"] for p, label, value in zip(pictures, found.labels, most, strict=True)
    ]


def test_the_example_classifies_in_a_process_without_torch(
    run: Path, pictures: list[Path], tmp_path: Path
) -> None:
    done = export(run, tmp_path / "out")
    assert done.priors
    assert sorted(path.name for path in done.folder.iterdir()) == [
        "README.md", "classify.py", "labels.json", "model.onnx",
    ]  # fmt: skip
    assert json.loads((done.folder / "labels.json").read_text()) == list("0123456789")
    assert classified(done.folder, pictures, "-c", WITHOUT) == expected(run, pictures)
    estimated = classified(done.folder, pictures, "-c", WITHOUT, options=("--priors", "em"))
    assert estimated == expected(run, pictures, priors="em")
    assert estimated != expected(run, pictures)


@pytest.mark.parametrize("lowest", [-20.0, 0.0, np.nan])
def test_the_example_reads_the_floating_point_images_that_fedcue_reads(lowest: float, tmp_path: Path) -> None:
    program = rendered("classify.txt", engine="onnxruntime", size=8, file="model.onnx", priors=False)
    reader: dict[str, Any] = {"__file__": str(tmp_path / "classify.py")}
    exec(program.split("model = ")[0], reader)
    pixels = np.linspace(0, 255, 400, dtype=np.float32).reshape(20, 20)
    pixels[0, 0] = lowest
    Image.fromarray(pixels).save(tmp_path / "numbers.tiff")
    if lowest == 0:
        same = reader["read"](tmp_path / "numbers.tiff").transpose(2, 0, 1)
        assert (same == read_images(tmp_path / "numbers.tiff", 8)[0].numpy()).all()
        return
    with pytest.raises(DataError, match="save it in 8 bits"):
        read_images(tmp_path / "numbers.tiff", 8)
    with pytest.raises(SystemExit, match="Save it in 8 bits"):
        reader["read"](tmp_path / "numbers.tiff")


def test_names_that_files_can_have(run: Path, pictures: list[Path], tmp_path: Path) -> None:
    """Also quotes, line ends, other scripts, bytes that are no text, and a name twice."""
    names = ["a", "a", 'say "b"', "c\nd", "e\tf", "鶏 🐔", os.fsdecode(b"g\xff"), "=h()", "<i>|", " "]
    odd = Path(shutil.copytree(run, tmp_path / "run"))
    description = json.loads((odd / "model.json").read_text())
    (odd / "model.json").write_text(json.dumps(description | {"classes": names}))
    given = [tmp_path / name for name in ('"j".png', "k\nl.png", os.fsdecode(b"m\xfe.png"))]
    for path, picture in zip(given, pictures, strict=False):
        shutil.copy(picture, path)
    done = export(odd, tmp_path / "out")
    assert json.loads((done.folder / "labels.json").read_text()) == names
    assert "鶏" in (done.folder / "labels.json").read_text()
    shown = [
        [cell.encode(errors="backslashreplace").decode() for cell in row] for row in expected(odd, given)
    ]
    assert classified(done.folder, given) == shown
    (tmp_path / "staged").mkdir()
    staged(odd, tmp_path / "staged")
    assert json.loads((tmp_path / "staged" / "labels.json").read_text()) == names


def test_the_example_says_how_it_is_used_and_takes_many_images(
    run: Path, pictures: list[Path], tmp_path: Path
) -> None:
    folder = export(run, tmp_path / "out", 1).folder
    asked = subprocess.run(
        [sys.executable, folder / "classify.py"], capture_output=True, text=True, check=False
    )
    assert asked.returncode == 1
    assert asked.stderr.startswith("Classify images: python classify.py IMAGE...")
    turned = next(path for path in pictures if path.name == "turned.png")
    damaged = tmp_path / "damaged.jpg"
    Image.open(turned).save(damaged, exif=Image.open(turned).getexif())
    damaged.write_bytes(damaged.read_bytes().replace(b"Exif\0\0", b"Exif\0\0XXXX", 1))
    many = [*pictures * 20, damaged]
    assert len(many) > 100
    assert classified(folder, many) == expected(run, many, client=1)
    half = tmp_path / "half.jpg"
    half.write_bytes(damaged.read_bytes()[:-200])
    refused = subprocess.run(
        [sys.executable, folder / "classify.py", turned, half], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"{half} cannot be read: ")


def test_a_torch_program_for_a_client(run: Path, pictures: list[Path], tmp_path: Path) -> None:
    done = export(run, tmp_path / "out", 2, form="torch")
    assert done.file.name == "model.pt2"
    assert classified(done.folder, pictures) == expected(run, pictures, client=2)
    assert "for client 2" in (done.folder / "README.md").read_text()


def test_int8_is_smaller_and_hardly_different(run: Path, tmp_path: Path) -> None:
    from onnxruntime import InferenceSession

    exact, small = export(run, tmp_path / "exact"), export(run, tmp_path / "small", quantize="int8")
    given = {"images": np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)}
    given["priors"] = np.ones(10, np.float32)
    both = [InferenceSession(one.file).run(None, given)[0] for one in (exact, small)]
    assert 0 < np.abs(both[0] - both[1]).mean() < 0.02
    assert small.file.stat().st_size < exact.file.stat().st_size


def test_the_card_s_header_is_what_the_hub_reads(run: Path, tmp_path: Path) -> None:
    text = (export(run, tmp_path / "out", form="torch").folder / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    found = yaml.safe_load(header)
    assert found["license"] == "cc-by-4.0"
    assert found["pipeline_tag"] == "image-classification"
    (entry,) = found["model-index"]
    accuracy = json.loads((run / "summary.json").read_text())["mean_accuracy"]
    assert entry["results"][0]["metrics"][0]["value"] == accuracy
    assert f"| clients that trained | {accuracy:.1%} |" in body
    assert str(run.parent.parent) not in text, "no path of this machine"
    assert "no privacy is accounted for" in body


def test_the_card_tells_settings_and_privacy_to_their_end(run: Path, tmp_path: Path) -> None:
    noisy = Path(shutil.copytree(run, tmp_path / "run"))
    summary = json.loads((run / "summary.json").read_text())
    summary["privacy"] = {"not_covered": "a word, " * 40 + "the end"}
    (noisy / "summary.json").write_text(json.dumps(summary))
    description = json.loads((run / "model.json").read_text())
    text = model_card(noisy, fedcue.load(noisy))
    assert "a word, the end\n" in text
    assert json.dumps(description["method"]) in text.replace("\\", "")


def test_what_is_there_is_not_lost(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path, form="torch")
    with pytest.raises(RunFolderError, match="not empty"):
        export(run, tmp_path, form="torch")
    export(run, tmp_path, form="torch", overwrite=True)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunFolderError, match="'thesis.txt', which is no part"):
        export(run, tmp_path, overwrite=True)


def test_a_place_that_is_no_folder_is_refused_before_the_model_is_traced(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "trace", lambda *_, **__: pytest.fail("traced"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in (tmp_path / "file", tmp_path / "file" / "below" / "it", tmp_path / "link"):
        with pytest.raises(RunFolderError, match="cannot be written: look at"):
            export(run, place)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RunFolderError, match="cannot be written: look at"):
        export(run, tmp_path / "new")
    monkeypatch.undo()
    (tmp_path / "out" / "README.md").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"'README\.md', which is no part"):
        export(run, tmp_path / "out", overwrite=True)


def test_a_full_disk_leaves_the_earlier_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    export(run, tmp_path, form="torch")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotWrite, match="No space left"):
        export(run, tmp_path, form="torch", overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_cannot_be_exported_is_told(
    run: Path, finished: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"give int8, with --format onnx"):
        export(run, tmp_path, form="torch", quantize="int8")
    with pytest.raises(ConfigError, match=r"each client has tensors of its own: give --client ID"):
        export(finished("ppt"), tmp_path)
    monkeypatch.setattr(files, "LIMIT", 1000)
    with pytest.raises(fedcue.FedcueError, match=r"an ONNX file holds at most 2\. Give --format torch"):
        export(run, tmp_path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"onnxscript is missing: pip install 'fedcue\[export\]'"):
        export(run, tmp_path)
    assert not list(tmp_path.iterdir())
