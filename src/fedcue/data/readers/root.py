"""The folder that ``data.root`` names."""

from __future__ import annotations

from pathlib import Path

from fedcue.errors import DataError


def existing_folder(root: Path | None) -> Path:
    """Return the folder ``data.root`` names, or say that it is missing."""
    if root is None:
        raise DataError("data.root is missing: give the folder of your images, data.root=FOLDER.")
    if not root.expanduser().is_dir():
        raise DataError(f"data.root={root} is not a folder. Give the folder that holds your images.")
    return root.expanduser()
