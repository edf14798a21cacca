"""Download a dataset's Parquet files, or say what to do without a network."""

from __future__ import annotations

from pathlib import Path

from fedcue.errors import DataError
from fedcue.machine import hub_failures, network_allowed


def download(repository: str) -> Path:
    """Return the local folder of the hub dataset ``repository``, downloading what is missing if allowed."""
    from huggingface_hub import snapshot_download

    fetch = network_allowed()
    try:
        folder = snapshot_download(
            repository, repo_type="dataset", allow_patterns=["*.parquet"], local_files_only=not fetch
        )
    except hub_failures() as error:
        failed = f"could not be downloaded ({type(error).__name__})"
        why = failed if fetch else "is not fetched because a folder names it (--fetch allows that)"
        raise DataError(
            f"Dataset {repository!r} is not in the local cache and {why}. Without network, copy the "
            f"Parquet files of https://huggingface.co/datasets/{repository} into a folder and give "
            "data.root=FOLDER."
        ) from error
    return Path(folder)
