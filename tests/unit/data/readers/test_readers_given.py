"""Datasets of torch, given in Python."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.data_files import picture, save_picture

import fedcue
from fedcue.data.image_sources import decode
from fedcue.data.readers.given import Given, from_examples
from fedcue.errors import DataError


class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Pictures whose labels alternate; ``kind`` says as what they are given."""

    def __init__(self, start: int, number: int, kind: str = "PIL") -> None:
        self.start, self.number, self.kind = start, number, kind

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[object, int]:
        image = picture(self.start + index)
        pixels = np.array(image)
        kinds = {
            "PIL": image,
            "array": pixels,
            "tensor": torch.from_numpy(pixels).permute(2, 0, 1),
            "float": torch.from_numpy(pixels).permute(2, 0, 1) / 255,
        }
        return kinds[self.kind], index % 2


@pytest.mark.parametrize("kind", ["PIL", "array", "tensor"])
def test_images_of_any_kind_are_read(kind: str) -> None:
    options = from_examples(Pictures(0, 6, kind), Pictures(6, 2, kind), classes=["cat", "dog"])
    dataset = options.load(0)
    assert dataset.classes == ("cat", "dog")
    assert dataset.labels.tolist() == [0, 1] * 4
    assert dataset.test.tolist() == [6, 7]
    assert np.array_equal(decode(dataset.images, 7, 6).transpose(1, 2, 0), np.asarray(picture(7)))
    assert dataset.images.content(3) == from_examples(Pictures(3, 1)).read().images.content(0)


def test_clients_domains_and_settings_can_be_given() -> None:
    options = from_examples(Pictures(0, 8), clients=["b", "a"] * 4, domains=["x"] * 8, test_share=0.5)
    dataset = options.load(0)
    assert dataset.owner_names == ("a", "b")
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [1, 0] * 4
    assert dataset.domain_names == ("x",)
    assert len(dataset.test) == 4


def test_labels_in_a_list_are_not_read_from_images() -> None:
    class Listed(Pictures):
        def __getitem__(self, index: int) -> tuple[object, int]:
            raise AssertionError("no image is needed for its label")

    examples = Listed(0, 3)
    examples.targets = [0, 1, 1]  # type: ignore[attr-defined]
    assert from_examples(examples).read().labels.tolist() == [0, 1, 1]


def test_floats_and_wrong_numbers_are_refused() -> None:
    with pytest.raises(DataError, match=r"float32.*leave transforms such as ToTensor out"):
        decode(from_examples(Pictures(0, 2, "float")).read().images, 0, 4)
    with pytest.raises(DataError, match="There are 1 clients for 2 images"):
        from_examples(Pictures(0, 2), clients=["a"])
    with pytest.raises(DataError, match="from 0 to 0"):
        from_examples(Pictures(0, 2), classes=["only"])
    with pytest.raises(DataError, match="lives in the Python program"):
        Given().read()


def test_labels_may_be_names_and_images_paths(tmp_path: Path) -> None:
    paths = [save_picture(tmp_path / f"{number}.png", number) for number in range(4)]
    dataset = from_examples(list(zip(map(str, paths), ["fox", "owl"] * 2, strict=True))).read()
    assert (dataset.classes, dataset.labels.tolist()) == (("fox", "owl"), [0, 1, 0, 1])
    assert np.array_equal(decode(dataset.images, 3, 6).transpose(1, 2, 0), np.asarray(picture(3)))
    both = from_examples([(paths[0], "owl")], [(paths[1], "fox")], classes=["owl", "fox"]).read()
    assert (both.classes, both.labels.tolist(), both.test.tolist()) == (("owl", "fox"), [0, 1], [1])
    with pytest.raises(DataError, match="Unknown label 'elk'. Known: fox, owl"):
        from_examples([(paths[0], "elk")], classes=["owl", "fox"])


@pytest.mark.parametrize(
    "given", [np.zeros((4, 6, 6, 3), np.uint8), (pair for pair in ()), [3, 4], [(1, None)]]
)
def test_what_is_no_pairs_is_refused_in_words(given: object) -> None:
    with pytest.raises(DataError, match=r"Give pairs of an image and a label, such as list\(zip"):
        from_examples(given)  # type: ignore[arg-type]


def test_a_reason_does_not_repeat_which_image_it_is() -> None:
    with pytest.raises(DataError, match=r"^Cannot read image 0 of the given Pictures \(is of type float32"):
        decode(from_examples(Pictures(0, 2, "float")).read().images, 0, 4)


class Columns:
    """A dataset of Hugging Face as far as it is used: items by name, columns, names of classes."""

    column_names = ("img", "fine_label")
    features = {"fine_label": SimpleNamespace(names=["cat", "dog"])}

    def __init__(self, number: int) -> None:
        self.opened: list[int] = []
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int | str) -> object:
        if isinstance(index, str):
            return [number % 2 for number in range(self.number)]
        self.opened.append(index)
        return {"img": picture(index), "fine_label": index % 2}


def test_a_dataset_of_hugging_face_is_read_by_its_columns() -> None:
    examples = Columns(4)
    dataset = from_examples(examples, image="img", label="fine_label").read()
    assert (dataset.classes, dataset.labels.tolist()) == (("cat", "dog"), [0, 1, 0, 1])
    assert not examples.opened, "labels are read without the images"
    assert dataset.images.open(2).tobytes() == picture(2).tobytes()
    with pytest.raises(DataError, match="Unknown column 'image'.*Name it with image="):
        from_examples(examples, label="fine_label").read().images.open(0)


def test_images_given_in_python_are_run_on(tmp_path: Path) -> None:
    given = fedcue.from_examples(Pictures(0, 40), clients=["ann", "bob"] * 20)
    config = fedcue.configure("own", ["backbone=embedded", "rounds=1", "workers=1"], data=given)
    assert (config.partition.name, config.clients_per_round) == ("natural", 2)
    result = fedcue.run(config, tmp_path / "run")
    assert result.summary["rounds"] == 1
    assert fedcue.load(result.folder).classes == ("0", "1")
