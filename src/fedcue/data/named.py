"""The dataset options: the named datasets, and the user's own in Parquet files or folders."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fedcue.data import folders, hub
from fedcue.data.catalogue import DOMAINNET_TEN, Description, describe
from fedcue.data.dataset import DataOptions, Dataset
from fedcue.data.layouts import read_layout
from fedcue.data.parquet import Columns, find_splits, read_parquet
from fedcue.errors import DataError


class NamedDataset(DataOptions):
    """Base of the datasets of the catalogue: read from ``root`` in any known layout, or from the hub."""

    def read(self) -> Dataset:
        """Read the labels and find the images, downloading them if there is no ``root``."""
        description = describe(self.name)
        if self.root is not None:
            return read_layout(self.root.expanduser(), description)
        return _complete(read_layout(fetch(self.name), description), description)

    def sketch(self) -> Dataset:
        """Return the dataset's shape: from the local copy if one is given, else from its description."""
        return describe(self.name).outline() if self.root is None else self.read()


class CIFAR10(NamedDataset):
    """CIFAR-10: 50,000 + 10,000 photographs of 32 x 32 pixels, 10 classes."""

    name: ClassVar[str] = "cifar10"


class CIFAR100(NamedDataset):
    """CIFAR-100: 50,000 + 10,000 photographs of 32 x 32 pixels, 100 classes."""

    name: ClassVar[str] = "cifar100"


class TinyImageNet(NamedDataset):
    """Tiny-ImageNet: 100,000 + 10,000 photographs of 64 x 64 pixels, 200 classes."""

    name: ClassVar[str] = "tiny-imagenet"


class DomainNet(NamedDataset):
    """DomainNet: six styles; ten of its 345 classes unless ``classes`` says otherwise."""

    name: ClassVar[str] = "domainnet"

    classes: tuple[str, ...] | None = Field(
        DOMAINNET_TEN, description="keep only these classes, in this order"
    )


class PACS(NamedDataset):
    """PACS: 9,991 pictures in four styles, 7 classes, no test split."""

    name: ClassVar[str] = "pacs"


class OfficeHome(NamedDataset):
    """Office-Home: 15,588 pictures in four styles, 65 classes, no test split."""

    name: ClassVar[str] = "office-home"


class INaturalist(NamedDataset):
    """iNaturalist-User-120k: 1,203 species, one client per user, each user's images split."""

    name: ClassVar[str] = "inaturalist"


class Parquet(DataOptions):
    """Your own Parquet files, or any image dataset on the hub: say what the columns are called."""

    name: ClassVar[str] = "parquet"

    hub: str | None = Field(None, description="hub id to download if there is no root, such as owner/name")
    image: str = Field("image", description="column of the encoded images")
    label: str = Field("label", description="column of the classes")
    domain: str | None = Field(None, description="column of the domains, if any")
    client: str | None = Field(None, description="column that says whose an image is, if any")
    train_split: str = Field("train", description="split to train on: what its files' names begin with")
    test_split: str | None = Field(None, description="split to test on; test or validation by default")

    def read(self) -> Dataset:
        """Read the labels and find the images, downloading them if there is no ``root``."""
        if self.root is None and self.hub is None:
            raise DataError("Dataset 'parquet' needs data.root=FOLDER or data.hub=OWNER/NAME.")
        folder = _existing(self.root) if self.root is not None else hub.download(str(self.hub))
        splits = find_splits(folder, self.train_split, self.test_split)
        columns = Columns(self.image, self.label, self.domain, self.client)
        return read_parquet(self.name, splits["train"], splits["test"], columns)


class Folder(DataOptions):
    """Your own image folder: ``class/x.jpg``, or ``train/class/x.jpg`` and ``test/class/x.jpg``."""

    name: ClassVar[str] = "folder"

    def read(self) -> Dataset:
        """Find the images of each class."""
        return folders.read_folder(self.name, _existing(self.root))


class FederatedFolder(DataOptions):
    """Your own clients: ``client/train/class/x.jpg`` and, if you have them, ``client/test/class/x.jpg``."""

    name: ClassVar[str] = "federated-folder"

    def read(self) -> Dataset:
        """Find the images of each client and class."""
        return folders.read_federated_folder(self.name, _existing(self.root))


def fetch(name: str) -> Path:
    """Download the dataset ``name`` unless it is cached, and return its folder."""
    description = describe(name)
    if description.hub is None:
        raise DataError(
            f"Dataset {name!r} cannot be downloaded for you. Get it from {description.source} and give "
            "data.root=FOLDER."
        )
    return hub.download(description.hub)


def guess(root: Path) -> DataOptions:
    """Choose the options that read the folder ``root`` by looking at it."""
    folder = _existing(root)
    if next(folder.rglob("*.parquet"), None):
        return Parquet(root=folder)
    return FederatedFolder(root=folder) if folders.is_federated(folder) else Folder(root=folder)


def _existing(root: Path | None) -> Path:
    if root is None:
        raise DataError("data.root is missing: give the folder of your images, data.root=FOLDER.")
    if not root.expanduser().is_dir():
        raise DataError(f"data.root={root} is not a folder. Give the folder that holds your images.")
    return root.expanduser()


def _complete(dataset: Dataset, description: Description) -> Dataset:
    """Refuse a download that was broken off: the cache would silently be a smaller dataset."""
    if description.exact and (len(dataset.train), len(dataset.test)) != (description.train, description.test):
        raise DataError(
            f"The cached download of {description.name!r} has {len(dataset.train)} training and "
            f"{len(dataset.test)} test images instead of {description.train} and {description.test}. Fetch "
            "it again with a network, or give a folder with data.root=FOLDER."
        )
    return dataset
