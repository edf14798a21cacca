"""The published lists of iNaturalist-User-120k, beside the images of iNaturalist 2017."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedcue.data.catalogue import Description
from fedcue.data.dataset import Dataset
from fedcue.data.readers import folders
from fedcue.data.readers.folders import Item, find_file
from fedcue.errors import DataError
from fedcue.foreign import csv_of

TRAIN_LIST, TEST_LIST = "federated_train_user_120k.csv", "test.csv"


def find(root: Path, description: Description) -> Path | None:
    """Return the root if the training list lies in it or one level below."""
    return root if find_file(root, TRAIN_LIST) else None


def read(root: Path, description: Description) -> Dataset:
    """Read the lists of the user split; the images lie anywhere below the root.

    The training list names user, image and class. The test list has no users: its images belong to nobody.
    """
    place = find_file(root, TRAIN_LIST) or root
    paths = {path.stem: path for path in folders.images(root)}
    items = _listed(place / TRAIN_LIST, paths, root, is_test=False)
    if description.test:
        items += _listed(place / TEST_LIST, paths, root, is_test=True)
    names = sorted({item.label for item in items}, key=lambda name: (len(name), name))  # 2 before 10
    return folders.build(description.name, items, classes=names)


def _listed(file: Path, paths: Mapping[str, Path], root: Path, is_test: bool) -> list[Item]:
    """Return the images of a list, in the order of their files."""
    if not file.is_file():
        raise DataError(
            f"{file.parent} has no {file.name}. Unpack inaturalist-user-120k.zip there, or give "
            "data.split=own to test on a part of each user's training images."
        )
    try:
        rows = list(csv_of(file)[1])
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}). Unpack it again.") from error
    wanted = {"image_id", "class"} if is_test else {"user_id", "image_id", "class"}
    if not rows or not all(row.get(column) for row in rows for column in wanted):
        raise DataError(f"{file} must have a line per image with the columns {', '.join(sorted(wanted))}.")
    missing = [row["image_id"] for row in rows if row["image_id"] not in paths]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(rows)} images of {file.name} are not below {root} (the first is "
            f"{missing[0]}.jpg). Unpack train_val_images.tar.gz of iNaturalist 2017 there."
        )
    items = [Item(paths[row["image_id"]], row["class"], is_test, owner=row.get("user_id")) for row in rows]
    return sorted(items, key=lambda item: item.path)
