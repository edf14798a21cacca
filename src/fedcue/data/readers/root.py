"""The folder that ``data.root`` names."""

from __future__ import annotations

import os
from pathlib import Path

from fedcue.errors import DataError
from fedcue.foreign import expanded

_ARCHIVES = (".7z", ".gz", ".rar", ".tar", ".tgz", ".zip")


def existing_folder(root: Path | None) -> Path:
    """Return the folder ``data.root`` names, or say that it is missing or closed."""
    if root is None:
        raise DataError("data.root is missing: give the folder of your images, data.root=FOLDER.")
    folder = expanded(root)
    if folder.suffix.lower() in (".csv", ".parquet") and folder.is_file():
        raise DataError(f"data.root={root} is a list of images, not a folder. Give data=manifest to read it.")
    if folder.suffix.lower() in _ARCHIVES and folder.is_file():
        raise DataError(f"data.root={root} is an archive. Unpack it and give the folder.")
    if not folder.is_dir():
        raise DataError(f"data.root={root} is not a folder. Give the folder that holds your images.")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise closed(folder)
    return folder


def closed(path: str | Path) -> DataError:
    """Return the error that a file or folder may not be read."""
    return DataError(
        f"{path} may not be read: permission denied. Change its permissions (chmod -R u+rX), or give a copy "
        "of your own."
    )
