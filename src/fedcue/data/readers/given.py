"""Images given in Python: a dataset of torch or of Hugging Face, or any sequence of images and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import PrivateAttr

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import FileImages, JoinedImages
from fedcue.data.options import DataOptions
from fedcue.errors import DataError, unknown

Labels = NDArray[Any]
_PAIRS = "Give pairs of an image and a label, such as list(zip(images, labels))."


class Examples(Protocol):
    """What a map-style dataset is: items by number, pairs (torch) or columns by name (Hugging Face)."""

    def __len__(self) -> int:
        """Return the number of pairs."""

    def __getitem__(self, index: int, /) -> Any:
        """Return an image (PIL, uint8 array or uint8 tensor) and its label."""


class Given(DataOptions):
    """Images given in Python; see ``from_examples``."""

    name: ClassVar[str] = "given"

    _dataset: Dataset | None = PrivateAttr(None)

    def read(self) -> Dataset:
        """Return what was given."""
        if self._dataset is None:
            raise DataError(
                "Dataset 'given' lives in the Python program that made it. Give it again there: "
                "fedcue.configure(RECIPE, SETTINGS, data=fedcue.from_examples(train, test))."
            )
        return self._dataset


def from_examples(
    train: Examples,
    test: Examples | None = None,
    *,
    classes: Sequence[str] | None = None,
    clients: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    image: str = "image",
    label: str = "label",
    **options: Any,
) -> Given:
    """Return images given in Python as a dataset for ``fedcue.configure(..., data=...)``.

    Items are an image and a label (``torch.utils.data.Dataset``, or ``list(zip(images, labels))``), or have
    them in the columns ``image`` and ``label`` (``datasets`` of Hugging Face). Images are of PIL, paths, or
    ``uint8`` arrays and tensors; labels are numbers from 0 or names.

    ``clients`` and ``domains`` name those of each image, training images first. Other keywords are settings
    of ``data``. Labels are read once, without the images where the dataset has them in a list or a column.
    """
    parts = [train] if test is None else [train, test]
    given_names, labels = _in_numbers([_labels(part, label) for part in parts], classes)
    number = int(labels.max(initial=-1)) + 1
    names = tuple(given_names or _class_names(train, label) or map(str, range(number)))
    if not len(labels) or labels.min() < 0 or number > len(names):
        raise DataError(f"Labels must be whole numbers from 0 to {len(names) - 1}, and there must be some.")
    owner_names, owners = _numbered(clients, "clients", len(labels))
    domain_names, domain = _numbered(domains, "domains", len(labels))
    given = Given(**options)
    given._dataset = Dataset(
        name="given",
        classes=names,
        labels=labels,
        is_test=np.arange(len(labels)) >= len(train),
        images=JoinedImages([_ExampleImages(part, image) for part in parts]),
        owners=owners,
        owner_names=owner_names,
        domains=domain,
        domain_names=domain_names,
    )
    return given


class _ExampleImages:
    """The images of a dataset, asked for one by one."""

    def __init__(self, examples: Examples, column: str = "image") -> None:
        self.examples, self.column = examples, column

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.examples)

    def open(self, index: int) -> Image.Image:
        """Return the image ``index``."""
        image = _part(self.examples[index], self.column, 0)
        if isinstance(image, Image.Image):
            return image.copy()
        if isinstance(image, str | Path):
            return FileImages([Path(image)]).open(0)
        pixels = np.asarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
            raise DataError(
                f"{self.describe(index)} is of type {pixels.dtype} and shape {pixels.shape}. Give PIL images "
                "or uint8 pixels [H, W], [H, W, 3] or [3, H, W]: leave transforms such as ToTensor out."
            )
        if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3):
            pixels = pixels.transpose(1, 2, 0)
        return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels))

    def content(self, index: int) -> bytes:
        """Return the image ``index`` as bytes, equal for equal images."""
        buffer = BytesIO()
        self.open(index).convert("RGB").save(buffer, "PPM")
        return buffer.getvalue()

    def describe(self, index: int) -> str:
        """Name the image ``index``."""
        return f"image {index} of the given {type(self.examples).__name__}"


def _part(item: Any, column: str, place: int) -> Any:
    """Return the image or the label of an item, by its column if it has columns, else by its place."""
    if not isinstance(item, Mapping):
        return item[place]
    if column not in item:
        raise DataError(f"{unknown('column', column, map(str, item))} Name it with image= and label=.")
    return item[column]


def _labels(examples: Examples, column: str) -> Labels:
    """Return the labels of a dataset, without opening its images where it has them in a list or a column."""
    if not hasattr(examples, "__len__"):
        raise DataError(f"A {type(examples).__name__} has no length. {_PAIRS}")
    if column in (getattr(examples, "column_names", None) or ()):
        return np.asarray(list(examples[column]))  # type: ignore[index]
    for name in ("targets", "labels"):
        found = getattr(examples, name, None)
        if found is not None and len(found) == len(examples):
            return np.asarray(found)
    return np.array([_label(examples, index, column) for index in range(len(examples))])


def _label(examples: Examples, index: int, column: str) -> int | str:
    try:
        label = _part(examples[index], column, 1)
        return label if isinstance(label, str) else int(label)
    except (TypeError, ValueError, IndexError) as error:
        about = f"Item {index} of the given {type(examples).__name__} is no image with its label"
        raise DataError(f"{about} ({str(error)[:100]}). {_PAIRS}") from error


def _in_numbers(found: Sequence[Labels], given: Sequence[str] | None) -> tuple[Sequence[str] | None, Labels]:
    """Return names and numbers of the classes, where labels are names; else numbers alone."""
    labels = np.concatenate(found)
    if labels.dtype.kind != "U":
        return given, labels.astype(np.int64)
    names = tuple(given or map(str, np.unique(labels)))
    number = {name: place for place, name in enumerate(names)}
    unnamed = sorted(set(labels.tolist()) - set(names))
    if unnamed:
        raise DataError(unknown("label", unnamed[0], names))
    return names, np.array([number[label] for label in labels.tolist()], dtype=np.int64)


def _class_names(examples: Examples, column: str) -> Sequence[str] | None:
    """Return the names that a dataset has for its labels, if any."""
    features = getattr(examples, "features", None)
    described = features.get(column) if isinstance(features, Mapping) else None
    names: Sequence[str] | None = getattr(described, "names", None) or getattr(examples, "classes", None)
    return names


def _numbered(
    names: Sequence[str] | None, what: str, number: int
) -> tuple[tuple[str, ...], np.ndarray[tuple[int], np.dtype[np.int64]] | None]:
    if names is None:
        return (), None
    if len(names) != number:
        raise DataError(f"There are {len(names)} {what} for {number} images. Name one for each, train first.")
    found, numbers = np.unique(np.asarray(names, dtype=str), return_inverse=True)
    return tuple(map(str, found)), numbers.astype(np.int64)
