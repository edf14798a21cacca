"""How the files of a named dataset can be laid out: as on the hub, or as they were first distributed.

Pickled files are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedcue.data.catalogue import Description
from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import ArrayImages, JoinedImages
from fedcue.data.readers import folders, inaturalist
from fedcue.data.readers.columns import Columns
from fedcue.data.readers.folders import Item, find_file
from fedcue.data.readers.parquet import find_splits, read_parquet
from fedcue.errors import DataError, shown
from fedcue.foreign import text_of


class Layout(NamedTuple):
    """One way to lay out files: what it looks like, where it begins, how it is read."""

    looks_like: str
    find: Callable[[Path, Description], Path | None]
    read: Callable[[Path, Description], Dataset]


def read_layout(root: Path, description: Description) -> Dataset:
    """Read a local copy of a named dataset in whichever of its layouts it has."""
    if not root.is_dir():
        raise DataError(f"data.root={root} is not a folder. Give the folder that holds {description.name}.")
    for key in description.layouts:
        start = LAYOUTS[key].find(root, description)
        if start is not None:
            return LAYOUTS[key].read(start, description)
    expected = " or ".join(LAYOUTS[key].looks_like for key in description.layouts)
    if description.domains:
        expected += f" (domains: {', '.join(description.domains)})"
    found = ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
    raise DataError(f"{root} does not hold {description.name}: expected {expected}, found {found}.")


def _find_parquet(root: Path, description: Description) -> Path | None:
    return root if next(root.rglob("*.parquet"), None) else None


def _read_parquet(root: Path, description: Description) -> Dataset:
    splits = find_splits(root, test_split=description.test_split)
    columns = Columns(description.image, description.label, description.domain, description.client)
    return read_parquet(description.name, splits["train"], splits["test"], columns)


def _finder(*names: str) -> Callable[[Path, Description], Path | None]:
    return lambda root, description: find_file(root, *names)


def _read_cifar100(root: Path, description: Description) -> Dataset:
    return _read_cifar(root, description, ["train.bin"], ["test.bin"], 2, "fine_label_names.txt")


def _read_cifar10(root: Path, description: Description) -> Dataset:
    train = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return _read_cifar(root, description, train, ["test_batch.bin"], 1, "batches.meta.txt")


def _read_cifar(
    root: Path, description: Description, train: list[str], test: list[str], label_bytes: int, names_file: str
) -> Dataset:
    """Read records of label bytes (the last one counts) followed by 3 x 32 x 32 pixels."""
    labels, parts, is_test = [], [], []
    classes = _class_names(root / names_file, description.classes)
    for file in (*train, *test):
        path = root / file
        if not path.is_file():
            raise DataError(f"{root} has no {file}; unpack the whole binary archive of {description.name}.")
        size = path.stat().st_size
        if not size or size % (label_bytes + 3072):
            raise DataError(
                f"{path} is cut off: its size is no multiple of {label_bytes + 3072}. Fetch it again."
            )
        records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, label_bytes + 3072)
        labels.append(records[:, label_bytes - 1].astype(np.int64))
        if labels[-1].max() >= len(classes):
            raise DataError(f"{path} has labels beyond its {len(classes)} classes. Fetch the archive again.")
        pixels = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        parts.append(ArrayImages(str(path), pixels))
        is_test.append(np.full(len(records), file in test))
    return Dataset(
        name=description.name,
        classes=classes,
        labels=np.concatenate(labels),
        is_test=np.concatenate(is_test),
        images=JoinedImages(parts),
    )


def _class_names(file: Path, number: int) -> tuple[str, ...]:
    """Read one class name per line; without the file the classes are called by their numbers."""
    if not file.is_file():
        return tuple(str(label) for label in range(number))
    return tuple(line.strip() for line in _lines(file) if line.strip())


def _lines(file: Path) -> list[str]:
    try:
        return text_of(file).splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}). Fetch it again.") from error


def _read_tiny_imagenet(root: Path, description: Description) -> Dataset:
    """Read ``train/WNID/images/*.JPEG`` and the validation images listed in ``val/val_annotations.txt``."""
    classes = [path.name for path in folders.folders(root / "train")]
    items = [Item(path, name) for name in classes for path in folders.images(root / "train" / name)]
    for line in _lines(listed := root / "val" / "val_annotations.txt"):
        file, name, *_ = (*line.split("\t"), "")
        if not name:
            raise DataError(f"{listed} has a line without file and class: {shown(line)}. Fetch it again.")
        items.append(Item(root / "val" / "images" / file, name, is_test=True))
    return folders.build(description.name, items, classes=classes)


def _find_domain_lists(root: Path, description: Description) -> Path | None:
    return find_file(root, f"{description.domains[0]}_train.txt")


def _read_domain_lists(root: Path, description: Description) -> Dataset:
    """Read ``DOMAIN_train.txt`` and ``DOMAIN_test.txt``, whose lines are ``DOMAIN/CLASS/FILE NUMBER``."""
    items = []
    for domain in description.domains:
        for split in ("train", "test"):
            file = root / f"{domain}_{split}.txt"
            if not file.is_file():
                raise DataError(f"{root} has no {file.name}. Fetch the train and test lists of every domain.")
            for line in _lines(file):
                path = Path(line.rsplit(" ", 1)[0])
                items.append(Item(root / path, path.parent.name, split == "test", domain))
    return folders.build(description.name, items, domains=description.domains)


def _find_domain_folders(root: Path, description: Description) -> Path | None:
    places = [root, *folders.folders(root)]
    places += [inner for place in places[1:] for inner in folders.folders(place)]
    wanted = {_plain(domain) for domain in description.domains}
    return next((p for p in places if wanted <= {_plain(path.name) for path in folders.folders(p)}), None)


def _read_domain_folders(root: Path, description: Description) -> Dataset:
    """Read ``DOMAIN/CLASS/x.jpg``."""
    known = {_plain(domain): domain for domain in description.domains}
    items = [
        Item(path, label.name, domain=known[_plain(domain.name)])
        for domain in folders.folders(root)
        if _plain(domain.name) in known
        for label in folders.folders(domain)
        for path in folders.images(label)
    ]
    return folders.build(description.name, items, domains=description.domains)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace(" ", "").replace("-", "")


LAYOUTS = {
    "parquet": Layout("Parquet files as on the hub", _find_parquet, _read_parquet),
    "cifar100": Layout(
        "the binary archive (cifar-100-binary/train.bin; the pickled python version is not read)",
        _finder("train.bin", "test.bin"),
        _read_cifar100,
    ),
    "cifar10": Layout(
        "the binary archive (cifar-10-batches-bin/data_batch_1.bin; the pickled python version is not read)",
        _finder("data_batch_1.bin", "test_batch.bin"),
        _read_cifar10,
    ),
    "tiny-imagenet": Layout(
        "the original folders (train/WNID/images, val/val_annotations.txt)",
        _finder("val/val_annotations.txt"),
        _read_tiny_imagenet,
    ),
    "domain-lists": Layout(
        "DOMAIN_train.txt and DOMAIN_test.txt next to the folders DOMAIN/CLASS",
        _find_domain_lists,
        _read_domain_lists,
    ),
    "domain-folders": Layout("folders DOMAIN/CLASS/x.jpg", _find_domain_folders, _read_domain_folders),
    "inaturalist": Layout(
        f"{inaturalist.TRAIN_LIST} and {inaturalist.TEST_LIST}, in the folder or one below, with the images "
        "anywhere below",
        inaturalist.find,
        inaturalist.read,
    ),
}
