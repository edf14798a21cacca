"""Your own image folders: what the folders' names stand for is recognised, or said with ``data.layout``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from fedcue.data.dataset import Dataset
from fedcue.data.options import DataOptions
from fedcue.data.readers.aside import left_aside, named, unread_formats
from fedcue.data.readers.folders import (
    TEST_NAMES,
    TRAIN_NAMES,
    Item,
    build,
    folders,
    holds_images,
    images,
    is_image,
)
from fedcue.data.readers.root import existing_folder
from fedcue.errors import DataError, many

LISTS = ("manifest.csv", "manifest.parquet")
"""Lists of images that the dataset ``manifest`` reads."""

SPLIT_NAMES = TRAIN_NAMES + TEST_NAMES

LayoutName = Literal["classes", "splits", "split-domains", "domains", "clients"]


class FolderLayout(NamedTuple):
    """What the folders of a layout stand for, and what reads it."""

    looks_like: str
    read: Callable[[Path], tuple[list[Item], list[str]]]


class Folder(DataOptions):
    """Your own image folder: ``class/x.jpg``, also below ``train`` and ``test``, domains or clients."""

    name: ClassVar[str] = "folder"

    layout: Literal["auto", LayoutName] = Field(
        "auto",
        description="what the folders stand for: CLASS/x.jpg (classes), train/CLASS and test/CLASS (splits), "
        "train/DOMAIN/CLASS and test/DOMAIN/CLASS (split-domains), DOMAIN/CLASS (domains), "
        "CLIENT/train/CLASS or CLIENT/CLASS (clients); recognised by default",
    )

    def read(self) -> Dataset:
        """Find the images of each class."""
        root = existing_folder(self.root)
        layout = recognise_layout(root) if self.layout == "auto" else self.layout
        items, classes = LAYOUTS[layout].read(root)
        if not items:
            missing = f"{root} holds no image as {LAYOUTS[layout].looks_like}. {_others(layout)}"
            raise DataError(" ".join([missing, *unread_formats(root)]))
        dataset = build(self.name, items, classes=classes)
        told = (_told(dataset, root, layout),) if self.layout == "auto" else ()
        return replace(dataset, notes=(*told, *left_aside(root, items)))


class FederatedFolder(Folder):
    """Your own clients: ``client/train/class/x.jpg`` and, if you have them, ``client/test/class/x.jpg``."""

    name: ClassVar[str] = "federated-folder"

    layout: Literal["auto", LayoutName] = Field(
        "clients", description="what the folders stand for; see the dataset 'folder'"
    )


def recognise_layout(root: Path) -> LayoutName:
    """Say what the folders in ``root`` stand for, by their names and by where the images lie.

    Folders without any image say nothing.
    """
    if not folders(root):
        raise DataError(_flat(root))
    top = [path for path in folders(root) if holds_images(path)]
    train = _part(root, TRAIN_NAMES)
    if train in top and not _has_images(train):
        return "split-domains" if _inside(train) == "domains" else "splits"
    if top and all(path.name.lower() in SPLIT_NAMES for path in top):
        raise DataError(_unlabelled(root, top))
    parts = [_part(path, SPLIT_NAMES) for path in top]
    if parts and all(parts):
        if not any(folders(part) for part in parts if part):
            raise DataError(_turned(root))
        return "clients"
    return _inside(root)


def _inside(root: Path) -> Literal["classes", "domains"]:
    """Say whether the folders in ``root`` are classes or, as they share their subfolders' names, domains."""
    top = [path for path in folders(root) if holds_images(path)]
    if any(_has_images(path) for path in top):
        return "classes"
    inner = [{path.name for path in folders(one) if holds_images(path)} for one in top]
    return "domains" if len(set().union(*inner)) > 1 and _share(inner) else "classes"


def _has_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(is_image(entry.name) for entry in entries)


def _share(inner: list[set[str]]) -> bool:
    """Tell whether each set of names shares one with another set."""
    return all(
        any(names & other for number, other in enumerate(inner) if number != own)
        for own, names in enumerate(inner)
    )


def _part(root: Path, names: tuple[str, ...]) -> Path | None:
    """Return the folder of a split, whatever the case of its name."""
    found = {path.name.lower(): path for path in folders(root)}
    return next((found[name] for name in names if name in found), None)


def _of_classes(
    root: Path, is_test: bool = False, domain: str | None = None, owner: str | None = None
) -> list[Item]:
    return [
        Item(path, folder.name, is_test, domain, owner) for folder in folders(root) for path in images(folder)
    ]


def _class_names(*roots: Path | None) -> list[str]:
    return sorted({path.name for root in roots if root is not None for path in folders(root)})


def _read_classes(root: Path) -> tuple[list[Item], list[str]]:
    return _of_classes(root), _class_names(root)


def _read_splits(root: Path) -> tuple[list[Item], list[str]]:
    train, test = _part(root, TRAIN_NAMES), _part(root, TEST_NAMES)
    if train is None:
        raise DataError(f"{root} has no folder train. {_others('splits')}")
    return [*_of_classes(train), *(_of_classes(test, True) if test else [])], _class_names(train)


def _read_split_domains(root: Path) -> tuple[list[Item], list[str]]:
    train, test = _part(root, TRAIN_NAMES), _part(root, TEST_NAMES)
    if train is None:
        raise DataError(f"{root} has no folder train. {_others('split-domains')}")
    places = [(path, part is test) for part in (train, test) if part for path in folders(part)]
    items = [item for path, is_test in places for item in _of_classes(path, is_test, domain=path.name)]
    return items, _class_names(*(path for path, _ in places))


def _read_domains(root: Path) -> tuple[list[Item], list[str]]:
    top = folders(root)
    return [item for path in top for item in _of_classes(path, domain=path.name)], _class_names(*top)


def _read_clients(root: Path) -> tuple[list[Item], list[str]]:
    items: list[Item] = []
    places: list[Path | None] = []
    for client in folders(root):
        train, test = _part(client, TRAIN_NAMES), _part(client, TEST_NAMES)
        if train is None and test is None:
            train = client
        for place, is_test in ((train, False), (test, True)):
            items.extend(_of_classes(place, is_test, owner=client.name) if place else [])
            places.append(place)
    return items, _class_names(*places)


def _told(dataset: Dataset, root: Path, layout: LayoutName) -> str:
    counts = [
        many(len(names), *noun)
        for names, noun in (
            (dataset.classes, ("class", "classes")),
            (dataset.domain_names, ("domain",)),
            (dataset.owner_names, ("client",)),
        )
        if names
    ]
    more = [
        f" {what}: {named(names)}."
        for names, what in (
            (dataset.classes, "Classes"),
            (dataset.domain_names, "Domains"),
            (dataset.owner_names, "Clients"),
        )
        if names
    ]
    more += [
        f" Its {name} is left aside: data=manifest reads it." for name in LISTS if (root / name).is_file()
    ]
    top = folders(root)
    if len(top) == 1 and len(folders(top[0])) > 1:
        more.append(f" It holds one folder: if that only wraps the others, give data.root={top[0]}.")
    said = f"{root} is read as {LAYOUTS[layout].looks_like}: {', '.join(counts)}."
    return f"{said}{''.join(more)} {_others(layout)}"


def _others(layout: str) -> str:
    others = ", ".join(f"{name} ({one.looks_like})" for name, one in LAYOUTS.items() if name != layout)
    return f"If that is wrong, give data.layout={others}, or a manifest (data=manifest)."


def _unlabelled(root: Path, splits: list[Path]) -> str:
    names = " and ".join(path.name for path in splits)
    return (
        f"{root} has images directly in {names}: nothing says what they show. Put them into one folder per "
        f"class, {splits[0].name}/CLASS/x.jpg, or list them in a file manifest.csv with the columns "
        "path,label,split and give data=manifest."
    )


def _turned(root: Path) -> str:
    return (
        f"{root} is laid out as CLASS/train/x.jpg, which is not read. Make it train/CLASS/x.jpg and "
        "test/CLASS/x.jpg, or list the images in a file manifest.csv with the columns path,label,split and "
        "give data=manifest."
    )


def _flat(root: Path) -> str:
    with os.scandir(root) as entries:
        found = sorted(entry.name for entry in entries if is_image(entry.name))
    if not found:
        empty = f"{root} has no images and no folders. Give data.root the folder that holds your images."
        return " ".join([empty, *unread_formats(root)])
    listed = next((name for name in LISTS if (root / name).is_file()), None)
    if listed:
        return (
            f"{root} holds {many(len(found), 'image')} and no folders, but a list, {listed}: "
            "give data=manifest to read it."
        )
    return (
        f"{root} holds {many(len(found), 'image')} such as {found[0]} and no folders: nothing says what they "
        "show. "
        f"Put them into one folder per class, CLASS/{found[0]}, or list them in a file manifest.csv there "
        "with the columns path,label and give data=manifest."
    )


LAYOUTS: dict[LayoutName, FolderLayout] = {
    "classes": FolderLayout("CLASS/x.jpg", _read_classes),
    "splits": FolderLayout("train/CLASS/x.jpg and test/CLASS/x.jpg", _read_splits),
    "split-domains": FolderLayout(
        "train/DOMAIN/CLASS/x.jpg and test/DOMAIN/CLASS/x.jpg", _read_split_domains
    ),
    "domains": FolderLayout("DOMAIN/CLASS/x.jpg", _read_domains),
    "clients": FolderLayout("CLIENT/train/CLASS/x.jpg or CLIENT/CLASS/x.jpg", _read_clients),
}
