"""Where a model lies: in a folder here, or in a repository of the hub."""

from __future__ import annotations

import re
from pathlib import Path

from fedcue.errors import RunFolderError
from fedcue.machine import hub_failures

FILES = (
    "model.json",
    "model.safetensors",
    "clients.safetensors",
    "backbone/config.json",
    "backbone/model.safetensors",
)
"""What is read of a repository; nothing else of it is downloaded."""

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def found(folder: str | Path, fetch: bool | None) -> tuple[Path, bool]:
    """Return a model's folder here, and whether what it names may be fetched.

    A name of the form ``user/repo`` is a repository, unless a folder ``user`` is here: then a path was
    meant. If ``fetch`` is not said, a repository was asked for by its name; a folder asks for nothing.
    """
    place, name = Path(folder), str(folder)
    if place.is_dir() or not REPOSITORY.fullmatch(name) or Path(name.split("/")[0]).is_dir():
        return place, bool(fetch)
    fetch = fetch is not False
    return _downloaded(name, fetch), fetch


def _downloaded(repository: str, fetch: bool) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(FILES), local_files_only=not fetch))
    except hub_failures() as error:
        why = f"could not be downloaded ({type(error).__name__})" if fetch else "may be fetched with --fetch"
        raise RunFolderError(
            f"There is no folder {repository}, and a repository of that name on the hub {why}. "
            "Give the folder of a finished run, or user/repo."
        ) from error
