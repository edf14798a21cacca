"""Beginning a run, or going on with one: where it lies, and what must be as it was."""

from __future__ import annotations

import re
import tomllib
from datetime import datetime
from pathlib import Path

from fedcue.config import dump, flat, resolve
from fedcue.errors import ConfigError, RunFolderError
from fedcue.federate.rehearsal import rehearse
from fedcue.federate.roster import Roster
from fedcue.record.names import as_typed
from fedcue.settings import Evaluation, RunConfig
from fedcue.types import ServerState

FREE = (
    "environment", "recipe", "rounds", "workers", "device", "min_updates", "client_timeout", "snapshots",
    "training", "log", "cache", "checkpoint",
    *(f"evaluation.{name}" for name in Evaluation.model_fields if name not in ("on", "validation_share")),
    "data.root", "data.cache_folder", "data.cache_bytes",
)  # fmt: skip
"""Settings that may change on the way: they say how to go on, not what was begun.

Which images are for validation may not: those of a run that began without any were trained on.
"""


def default_folder(config: RunConfig) -> Path:
    """Return a new folder under ``runs/`` named after what is run and when."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{config.recipe}-{config.method.name}-seed{config.seed}"
    return Path("runs") / f"{re.sub(r'[^A-Za-z0-9_=.+-]+', '-', name).lstrip('.')[:150]}-{stamp}"


def check_same_run(config: RunConfig, folder: Path) -> None:
    """Refuse to go on with another method, other data or other clients than the run began with."""
    settled = getattr(config.privacy, "noise", 0.0) is None
    change = difference(config, folder, tuple(key for key in FREE if key != "rounds" or not settled))
    if change:
        reason = " (the noise of privacy=dp was settled for its rounds)" if "rounds=" in change else ""
        raise RunFolderError(
            f"{folder} holds another run: {change}{reason}. Go on with fedcue resume {folder}, or give "
            "another --out."
        )


def check_state(roster: Roster, state: ServerState) -> None:
    """Refuse a checkpoint whose tensors are not those of the method.

    Tensors without rows at the start have one for each client that has been visited.
    """
    visited = None
    for name, tensor in rehearse(roster).state.tensors.items():
        found, shape = state.tensors.get(name), list(tensor.shape)
        if found is not None and shape[:1] == [0] and found.ndim:
            visited = len(found) if visited is None else visited
            shape[0] = visited
        if found is None or (list(found.shape), found.dtype) != (shape, tensor.dtype):
            raise RunFolderError(
                f"The checkpoint's {name} does not fit {roster.method.name} on this data. "
                "Start again with --overwrite or another --out."
            )


def difference(config: RunConfig, folder: Path, free: tuple[str, ...]) -> str:
    """Say how the configuration in a run's folder differs from this one, or nothing.

    A setting that did not exist yet when the run was made counts as its default.
    """
    try:
        given = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        there = dump(resolve(given, name=str(given.get("recipe"))))
    except (OSError, ValueError, RecursionError):
        return "it has no readable config.toml"
    except ConfigError as error:
        return f"its config.toml is of another version ({error})"
    there, asked = (flat(table) for table in (there, dump(config)))
    for key in [*asked, *there]:
        if there.get(key) != asked.get(key) and not {key, key.partition(".")[0]} & set(free):
            return f"there {key}={as_typed(there.get(key))}, asked for {key}={as_typed(asked.get(key))}"
    return ""
