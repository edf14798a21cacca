"""Images as people have them become what training saw, or are refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedcue.after.images import read_images
from fedcue.data.image_sources import FileImages, decode
from fedcue.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "one.png")
    return tmp_path / "one.png"


def test_every_form_of_an_image_is_read_as_training_reads_its_file(path: Path) -> None:
    expected = torch.from_numpy(decode(FileImages([path]), 0, 8))[None]
    first = PIXELS.transpose(2, 0, 1)
    forms: list[Any] = [path, str(path), Image.fromarray(PIXELS), PIXELS, first, PIXELS[None], first[None]]
    forms += [torch.tensor(first), torch.tensor(PIXELS), torch.tensor(first)[None], [path], (PIXELS,)]
    for given in forms:
        assert torch.equal(read_images(given, 8), expected), type(given)


def test_grey_pixels_are_read_as_their_file_is(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[..., 0]).save(tmp_path / "grey.png")
    assert torch.equal(read_images(PIXELS[..., 0], 8), read_images(tmp_path / "grey.png", 8))


def test_images_of_several_forms_and_sizes_keep_their_order(path: Path) -> None:
    black = torch.zeros(2, 3, 5, 7, dtype=torch.uint8)
    read = read_images([black, path, np.full((4, 4, 3), 255, np.uint8)], 8)
    assert read.shape == (4, 3, 8, 8)
    assert read.flatten(1).float().mean(1).round().tolist()[:2] == [0, 0]
    assert (read[3] == 255).all()


def test_tensors_of_the_models_size_are_not_changed() -> None:
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(read_images(images, 8), images)


def test_an_image_stays_open_for_its_owner(path: Path) -> None:
    with Image.open(path) as image:
        read_images(image, 8)
        assert image.getpixel((0, 0)) == tuple(PIXELS[0, 0])


REFUSED: dict[str, tuple[Any, str]] = {
    "floats": (torch.zeros(1, 3, 8, 8), "float32; the model takes uint8 from 0 to 255"),
    "wide numbers": (PIXELS.astype(np.int64), "of type int64"),
    "no colours": (np.zeros((4, 8, 8), np.uint8), r"\[4, 8, 8\] has no axis of three colours"),
    "five axes": (np.zeros((1, 1, 3, 8, 8), np.uint8), "no axis of three colours"),
    "either": (np.zeros((3, 8, 3), np.uint8), "colours first or last"),
    "empty": (np.zeros((3, 0, 8), np.uint8), "Give PIL images"),
    "nothing": ([], "No image was given"),
    "no batch": (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "No image was given"),
    "a number": (3, "int is no image"),
    "a missing file": (
        Path("there-is-none.png"),
        r"Cannot read there-is-none.png \(there is no such file\)\. Mend it, or give another image\.$",
    ),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_image_is_refused_in_words(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_images(given, 8)
