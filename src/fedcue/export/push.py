"""Put a trained model on the hub, in a layout that ``fedcue.load("user/repo")`` reads."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedcue.after.hub import REPOSITORY
from fedcue.after.predict import BESIDE, backbone_of, load
from fedcue.errors import ConfigError, FedcueError, RunFolderError
from fedcue.export.card import labels, model_card
from fedcue.foreign import expanded
from fedcue.machine import hub_failures
from fedcue.model.backbone import WEIGHTS, locate
from fedcue.record.files import read_json, write_json, write_text
from fedcue.report.run_files import json_object

_DESCRIBED = ("architecture", "model_args", "license", "mean", "std", "pretrained_cfg")
"""What is published of a backbone's ``config.json``; a file of that name may be another program's."""


def push(
    run: Path,
    repository: str,
    *,
    private: bool = False,
    clients: bool = False,
    trusted: Collection[str] = (),
    fetch: bool = False,
) -> str:
    """Put the model of a run into a repository of the hub, made if there is none; return its address.

    Names, class priors and own tensors of clients stay here unless ``clients`` is given; so do settings,
    checkpoints and metrics. A backbone that lies in a folder, wherever on this machine, goes along.
    """
    _check_name(repository)
    with tempfile.TemporaryDirectory() as folder:
        staged(run, Path(folder), clients=clients, trusted=trusted, fetch=fetch)
        return _upload(Path(folder), repository, private)


def staged(
    run: Path, folder: Path, *, clients: bool = False, trusted: Collection[str] = (), fetch: bool = False
) -> None:
    """Write into ``folder`` what a repository holds."""
    model = load(run, trusted, fetch=fetch)
    if model.method.table(model.sizes).kept and not clients:
        raise ConfigError(
            f"With {model.method.name} each client has tensors of its own, without which nobody can predict. "
            "Give --clients to publish them, or fedcue export --client for one client."
        )
    description: dict[str, Any] = read_json(run / "model.json")
    if not clients:
        description["clients"] = {}
    backbone = backbone_of(run, description)
    if expanded(backbone).exists():
        _copy_backbone(locate(backbone), folder / "backbone")
        description["backbone"]["name"] = BESIDE
    try:
        write_json(folder / "model.json", description)
    except ValueError as error:
        raise RunFolderError(f"{run / 'model.json'} is damaged: {error}. Repeat the run.") from error
    kept = ("model.safetensors", "clients.safetensors") if clients else ("model.safetensors",)
    for name in kept:
        if (run / name).is_symlink():
            raise RunFolderError(
                f"{run / name} is a link: what it points to would be published. Put the file itself there."
            )
        if (run / name).is_file():
            shutil.copyfile(run / name, folder / name)
    write_text(folder / "labels.json", labels(model), escape=True)
    write_text(folder / "README.md", model_card(run, model), escape=True)


def _check_name(repository: str) -> None:
    """Refuse a name that no repository can have, before anything is read or written."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
        if REPOSITORY.fullmatch(repository):
            return
        reason = "it has no user"
    except HFValidationError as error:
        reason = str(error)
    raise ConfigError(f"{repository!r} is no repository of the hub ({reason}). Give user/name.")


def _copy_backbone(weights: Path, folder: Path) -> None:
    """Copy a backbone's weights, and of its ``config.json`` what is read and no more."""
    folder.mkdir()
    shutil.copyfile(weights, folder / WEIGHTS)
    config = json_object(weights.parent / "config.json")
    write_json(folder / "config.json", {key: config[key] for key in _DESCRIBED if key in config})


def _upload(folder: Path, repository: str, private: bool) -> str:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=repository, commit_message="A model of fedcue")
    except hub_failures() as error:
        reason = f"{type(error).__name__}: {error}"[:300]
        raise FedcueError(
            f"{repository} could not be written ({reason}). Log in with 'hf auth login' or set HF_TOKEN, "
            "give a repository that is yours, and see that the network reaches the hub."
        ) from error
    return str(address)
