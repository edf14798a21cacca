"""Which reader suits a folder: found by looking at it."""

from __future__ import annotations

from pathlib import Path

from fedcue.data.options import DataOptions
from fedcue.data.readers.folders import FederatedFolder, Folder, is_federated
from fedcue.data.readers.parquet import Parquet
from fedcue.data.readers.root import existing_folder


def guess(root: Path) -> DataOptions:
    """Choose the options that read the folder ``root`` by looking at it."""
    folder = existing_folder(root)
    if next(folder.rglob("*.parquet"), None):
        return Parquet(root=folder)
    return FederatedFolder(root=folder) if is_federated(folder) else Folder(root=folder)
