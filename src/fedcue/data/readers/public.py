"""The public datasets that are known by name, from a local copy or from the hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from fedcue.data.catalogue import DOMAINNET_TEN, Description, describe
from fedcue.data.dataset import Dataset
from fedcue.data.options import DataOptions
from fedcue.data.readers import hub
from fedcue.data.readers.layouts import read_layout
from fedcue.errors import DataError
from fedcue.foreign import expanded


class PublicDataset(DataOptions):
    """Base of the datasets of the catalogue: read from ``root`` in any known layout, or from the hub."""

    @property
    def description(self) -> Description:
        """What is known of the dataset."""
        return describe(self.name)

    def read(self) -> Dataset:
        """Read the labels and find the images, downloading them if there is no ``root``."""
        if self.root is not None:
            return read_layout(expanded(self.root), self.description)
        return _complete(read_layout(fetch(self.name), self.description), self.description)

    def sketch(self) -> Dataset:
        """Return the dataset's shape: from the local copy if one is given, else from its description."""
        return self.description.outline() if self.root is None else self.read()


class CIFAR10(PublicDataset):
    """CIFAR-10: 50,000 + 10,000 photographs of 32 x 32 pixels, 10 classes."""

    name: ClassVar[str] = "cifar10"


class CIFAR100(PublicDataset):
    """CIFAR-100: 50,000 + 10,000 photographs of 32 x 32 pixels, 100 classes."""

    name: ClassVar[str] = "cifar100"


class TinyImageNet(PublicDataset):
    """Tiny-ImageNet: 100,000 + 10,000 photographs of 64 x 64 pixels, 200 classes."""

    name: ClassVar[str] = "tiny-imagenet"


class DomainNet(PublicDataset):
    """DomainNet: six styles; ten of its 345 classes unless ``classes`` says otherwise."""

    name: ClassVar[str] = "domainnet"

    classes: tuple[str, ...] | None = Field(
        DOMAINNET_TEN, description="keep only these classes, in this order"
    )


class PACS(PublicDataset):
    """PACS: 9,991 pictures in four styles, 7 classes, no test split."""

    name: ClassVar[str] = "pacs"


class OfficeHome(PublicDataset):
    """Office-Home: 15,588 pictures in four styles, 65 classes, no test split."""

    name: ClassVar[str] = "office-home"


class INaturalist(PublicDataset):
    """iNaturalist-User-120k: 1,203 species photographed by 9,275 users."""

    name: ClassVar[str] = "inaturalist"

    split: Literal["official", "own"] = Field(
        "official",
        description="official: all training images train, the test images have no users; own: test_share of "
        "each user's training images, spread over the classes, tests",
    )

    @property
    def description(self) -> Description:
        """What is known of the dataset: with a split of one's own its test images are not read."""
        known = describe(self.name)
        return known if self.split == "official" else replace(known, test=0)

    def read(self) -> Dataset:
        """Read the lists of the chosen split."""
        dataset = super().read()
        if self.split == "own":
            return dataset.take(dataset.train)
        if not dataset.is_test.any():
            raise DataError(
                f"{self.root} has no test images. Add the test split of iNaturalist-User-120k, or give "
                "data.split=own to test on a part of each user's training images."
            )
        return dataset


def fetch(name: str) -> Path:
    """Download the dataset ``name`` unless it is cached, and return its folder."""
    description = describe(name)
    if description.hub is None:
        raise DataError(
            f"Dataset {name!r} cannot be downloaded for you. Get it from {description.source} and give "
            "data.root=FOLDER."
        )
    return hub.download(description.hub)


def _complete(dataset: Dataset, description: Description) -> Dataset:
    """Refuse a download that was broken off: the cache would silently be a smaller dataset."""
    if description.exact and (len(dataset.train), len(dataset.test)) != (description.train, description.test):
        raise DataError(
            f"The cached download of {description.name!r} has {len(dataset.train)} training and "
            f"{len(dataset.test)} test images instead of {description.train} and {description.test}. Fetch "
            "it again with a network, or give a folder with data.root=FOLDER."
        )
    return dataset
