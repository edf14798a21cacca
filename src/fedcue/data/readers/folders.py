"""Image folders: ``class/x.jpg``, with or without ``train/`` and ``test/``, also one per client."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import FileImages
from fedcue.data.options import DataOptions
from fedcue.data.readers.root import existing_folder
from fedcue.errors import DataError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "val", "valid", "validation")


class Item(NamedTuple):
    """One image file and what its place says about it."""

    path: Path
    label: str
    is_test: bool = False
    domain: str | None = None
    owner: str | None = None


class Folder(DataOptions):
    """Your own image folder: ``class/x.jpg``, or ``train/class/x.jpg`` and ``test/class/x.jpg``."""

    name: ClassVar[str] = "folder"

    def read(self) -> Dataset:
        """Find the images of each class."""
        return read_folder(self.name, existing_folder(self.root))


class FederatedFolder(DataOptions):
    """Your own clients: ``client/train/class/x.jpg`` and, if you have them, ``client/test/class/x.jpg``."""

    name: ClassVar[str] = "federated-folder"

    def read(self) -> Dataset:
        """Find the images of each client and class."""
        return read_federated_folder(self.name, existing_folder(self.root))


def build(
    name: str, items: Iterable[Item], classes: Iterable[str] = (), domains: Iterable[str] = ()
) -> Dataset:
    """Make a dataset of image files; ``classes`` and ``domains`` come first, even if no file has them."""
    listed = list(items)
    if not listed:
        raise DataError(f"Dataset {name!r} has no images: no {', '.join(sorted(SUFFIXES))} file was found.")
    class_names = _names(classes, (item.label for item in listed))
    domain_names = _names(domains, (item.domain for item in listed if item.domain is not None))
    owner_names = _names((), (item.owner for item in listed if item.owner is not None))
    label = {name: number for number, name in enumerate(class_names)}
    domain = {name: number for number, name in enumerate(domain_names)}
    owner = {name: number for number, name in enumerate(owner_names)}
    return Dataset(
        name=name,
        classes=class_names,
        labels=np.array([label[item.label] for item in listed], dtype=np.int64),
        is_test=np.array([item.is_test for item in listed], dtype=np.bool_),
        images=FileImages([item.path for item in listed]),
        domains=np.array([domain.get(item.domain or "", -1) for item in listed]) if domain else None,
        domain_names=domain_names,
        owners=np.array([owner.get(item.owner or "", -1) for item in listed]) if owner else None,
        owner_names=owner_names,
    )


def folders(root: Path) -> list[Path]:
    """Return the folders in ``root`` in order of their names, hidden ones left out."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def images(folder: Path) -> list[Path]:
    """Return the image files in and below ``folder`` in order of their paths, hidden ones left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def find_file(root: Path, *names: str) -> Path | None:
    """Look for one of these files in the folder or one level below; return the folder that has it."""
    places = [root, *folders(root)]
    return next((place for place in places for name in names if (place / name).is_file()), None)


def read_folder(name: str, root: Path) -> Dataset:
    """Read ``class/x.jpg``, or ``train/class/x.jpg`` with ``test/class/x.jpg``."""
    splits = {path.name.lower(): path for path in folders(root)}
    train = next((splits[name] for name in TRAIN_NAMES if name in splits), None)
    if train is None:
        return build(name, _items(root, False), classes=_class_folders(root))
    test = next((splits[name] for name in TEST_NAMES if name in splits), None)
    items = [*_items(train, False), *(_items(test, True) if test else [])]
    return build(name, items, classes=_class_folders(train))


def read_federated_folder(name: str, root: Path) -> Dataset:
    """Read ``client/train/class/x.jpg`` and, where it exists, ``client/test/class/x.jpg``."""
    items: list[Item] = []
    classes: set[str] = set()
    for client in folders(root):
        splits = {path.name.lower(): path for path in folders(client)}
        for names, is_test in ((TRAIN_NAMES, False), (TEST_NAMES, True)):
            part = next((splits[name] for name in names if name in splits), None)
            if part is not None:
                items.extend(_items(part, is_test, owner=client.name))
                classes.update(_class_folders(part))
    return build(name, items, classes=sorted(classes))


def is_federated(root: Path) -> bool:
    """Tell whether ``root`` holds one folder per client, each with ``train/``."""
    clients = folders(root)
    return bool(clients) and all(any((path / name).is_dir() for name in TRAIN_NAMES) for path in clients)


def _items(root: Path, is_test: bool, owner: str | None = None) -> list[Item]:
    return [
        Item(path, folder.name, is_test, None, owner) for folder in folders(root) for path in images(folder)
    ]


def _class_folders(root: Path) -> list[str]:
    return [path.name for path in folders(root)]


def _names(first: Iterable[str], found: Iterable[str]) -> tuple[str, ...]:
    known = list(dict.fromkeys(first))
    return (*known, *sorted(set(found) - set(known)))
