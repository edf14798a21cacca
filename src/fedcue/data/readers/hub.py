"""Download a dataset's Parquet files, or say what to do without a network."""

from __future__ import annotations

from pathlib import Path

from fedcue.errors import DataError


def download(repository: str) -> Path:
    """Return the local folder of the hub dataset ``repository``, downloading what is missing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(repository, repo_type="dataset", allow_patterns=["*.parquet"])
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        raise DataError(
            f"Dataset {repository!r} is not in the local cache and could not be downloaded "
            f"({type(error).__name__}). Without network, copy the Parquet files of "
            f"https://huggingface.co/datasets/{repository} into a folder and give data.root=FOLDER."
        ) from error
    return Path(folder)
