"""Images given in Python: any ``torch.utils.data.Dataset``, or any sequence of images and labels."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any, ClassVar, Protocol

import numpy as np
from PIL import Image
from pydantic import PrivateAttr

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import JoinedImages
from fedcue.data.options import DataOptions
from fedcue.errors import DataError


class Examples(Protocol):
    """What a map-style dataset of torch is: pairs of image and label by number."""

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
                "config.model_copy(update={'data': from_examples(train, test)})."
            )
        return self._dataset


def from_examples(
    train: Examples,
    test: Examples | None = None,
    *,
    classes: Sequence[str] | None = None,
    clients: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    **options: Any,
) -> Given:
    """Return the data options of datasets of torch whose items are an image and a label.

    ``clients`` and ``domains`` name those of each image, training images first. Other keywords are settings
    of ``data``. Labels are read once, from ``targets`` or ``labels`` where the dataset has them.
    """
    parts = [train] if test is None else [train, test]
    labels = np.concatenate([_labels(part) for part in parts])
    number = int(labels.max(initial=-1)) + 1
    names = tuple(classes or getattr(train, "classes", None) or map(str, range(number)))
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
        images=JoinedImages([ExampleImages(part) for part in parts]),
        owners=owners,
        owner_names=owner_names,
        domains=domain,
        domain_names=domain_names,
    )
    return given


class ExampleImages:
    """The images of a dataset of torch, asked for one by one."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.examples)

    def open(self, index: int) -> Image.Image:
        """Return the image ``index``."""
        image = self.examples[index][0]
        if isinstance(image, Image.Image):
            return image.copy()
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


def _labels(examples: Examples) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the labels of a dataset, without opening its images where it has them in a list."""
    for name in ("targets", "labels"):
        found = getattr(examples, name, None)
        if found is not None and len(found) == len(examples):
            return np.asarray(found).astype(np.int64)
    return np.array([int(examples[index][1]) for index in range(len(examples))], dtype=np.int64)


def _numbered(
    names: Sequence[str] | None, what: str, number: int
) -> tuple[tuple[str, ...], np.ndarray[tuple[int], np.dtype[np.int64]] | None]:
    if names is None:
        return (), None
    if len(names) != number:
        raise DataError(f"There are {len(names)} {what} for {number} images. Name one for each, train first.")
    found, numbers = np.unique(np.asarray(names, dtype=str), return_inverse=True)
    return tuple(map(str, found)), numbers.astype(np.int64)
