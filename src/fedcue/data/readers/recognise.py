"""Which reader suits a folder or a list: found by looking at it."""

from __future__ import annotations

from pathlib import Path

from fedcue.data.options import DataOptions
from fedcue.data.readers.image_folder import LISTS, Folder
from fedcue.data.readers.manifest import Manifest
from fedcue.data.readers.parquet import Parquet
from fedcue.data.readers.root import existing_folder
from fedcue.data.readers.saved import Saved, is_saved
from fedcue.foreign import expanded


def guess(root: Path) -> DataOptions:
    """Choose the options that read ``root`` by looking at it."""
    if root.suffix.lower() in (".csv", ".parquet") and expanded(root).is_file():
        return Manifest(root=expanded(root))
    folder = existing_folder(root)
    if any((folder / name).is_file() for name in LISTS):
        return Manifest(root=folder)
    if is_saved(folder):
        return Saved(root=folder)
    if next(folder.rglob("*.parquet"), None):
        return Parquet(root=folder)
    return Folder(root=folder)
