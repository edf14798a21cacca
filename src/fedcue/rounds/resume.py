"""Beginning a run, or going on with one: where it lies, and what must be as it was."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from fedcue.clients.roster import Roster
from fedcue.config.layers import dump, resolve
from fedcue.config.recipes import import_paths, read_settings
from fedcue.config.scope import FREE_AT_RESUME, NOT_IN_LABELS, Scope, scope_of
from fedcue.config.settings import RunConfig
from fedcue.config.words import flat, typed
from fedcue.errors import ConfigError, RunFolderError, many
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.record.checkpoint import Checkpoint
from fedcue.record.files import earlier_settings, keep_settings_until, settings_at
from fedcue.record.folder import RunFolder, environment
from fedcue.types import ServerState

_MOVES_BITS = ("device", "engine.together", "environment.")
"""What belongs to a machine and changes the last bits of what it computes."""


def default_folder(config: RunConfig) -> Path:
    """Return a new folder under ``runs/`` named after what is run and when, never twice the same."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{config.recipe}-{config.method.name}-seed{config.seed}"
    plain = re.sub(r"[^A-Za-z0-9_=.+-]+", "-", name).lstrip(".")[:150]
    return Path("runs") / f"{plain}-{stamp}-{secrets.token_hex(4)}"


def check_same_run(config: RunConfig, folder: Path) -> None:
    """Refuse to go on with another method, other data or other clients than the run began with."""
    change = differing(config, folder, FREE_AT_RESUME, _fixed(config))
    if change:
        raise RunFolderError(
            f"{folder} holds another run: {_with_reason(change)}. Go on with fedcue resume {folder}, or give "
            "another --out."
        )


def _fixed(config: RunConfig) -> tuple[str, ...]:
    """Return what may not change although its scope allows it: rounds for which noise was settled."""
    privacy = config.privacy
    settled = isinstance(privacy, DifferentialPrivacy) and privacy.noise is None
    return ("rounds",) if settled else ()


def _with_reason(change: str) -> str:
    return f"{change} (the noise of privacy=dp was settled for its rounds)" if "rounds=" in change else change


def differing(config: RunConfig, folder: Path, free: tuple[Scope, ...], fixed: tuple[str, ...] = ()) -> str:
    """Say how the configuration in a run's folder differs from this one, but for settings of ``free`` scopes.

    A setting that did not exist yet when the run was made counts as its default.
    """
    try:
        there = _settings(read_settings(folder / "config.toml"), config)
    except ConfigError as error:
        return f"its config.toml is damaged or of another version ({error})"
    return _difference(there, _now(config), free, fixed)


def _difference(
    held: Mapping[str, Any], now: Mapping[str, Any], free: tuple[Scope, ...], fixed: tuple[str, ...]
) -> str:
    there, asked = flat(held), flat(now)
    for key in [*asked, *there]:
        matters = scope_of(key) not in free or key in fixed
        if there.get(key) != asked.get(key) and matters:
            return f"there {key}={typed(there.get(key))}, asked for {key}={typed(asked.get(key))}"
    return ""


def _settings(given: Mapping[str, Any], config: RunConfig) -> dict[str, Any]:
    """Return all settings that a run left, and the versions it was done with.

    They may name no class by import path that ``config`` has not.
    """
    found = dump(resolve(given, name=str(given.get("recipe")), trusted=import_paths(dump(config))))
    versions = given.get("environment")
    named = versions.items() if isinstance(versions, Mapping) else ()
    return {**found, "environment": {name: str(value) for name, value in named}}


def _now(config: RunConfig) -> dict[str, Any]:
    """Return the settings asked for as a folder would give them back, and the versions of now."""
    return _settings({**dump(config), "environment": environment()}, config)


def keep_settings(config: RunConfig, folder: Path, checkpoint: Checkpoint) -> None:
    """Keep the settings that held until now beside the new ones, if what follows is done otherwise.

    A checkpoint knows its own: ``config.toml`` may have been changed by hand.
    """
    round_ = checkpoint.state.round
    given = checkpoint.settings
    if given is None:
        given = read_settings(settings_at(folder, round_))
    try:
        held = _settings(given, config)
    except ConfigError as error:
        raise RunFolderError(
            f"The settings in the checkpoint of round {round_} cannot be read ({error}). Start again with "
            "--overwrite or another --out."
        ) from error
    now = _now(config)
    change = _difference(held, now, FREE_AT_RESUME, _fixed(config))
    if change:
        raise RunFolderError(
            f"{folder / 'config.toml'} is not what it was in round {round_}: {_with_reason(change)}. "
            "Put it back, or give another --out."
        )
    if config.rounds < round_:
        raise RunFolderError(
            f"{folder} has {many(round_, 'round')} already, asked for rounds={config.rounds}. Give "
            f"rounds={round_} or more, or another --out."
        )
    keep_settings_until(folder, tomli_w.dumps(held) if _changes(held, now) else None, round_)
    changed_settings(config, folder)  # what cannot be told is said now and not after the last round


def changed_settings(config: RunConfig, folder: Path) -> list[dict[str, Any]]:
    """Say which settings changed when the run was resumed, and from which round on the new ones held."""
    earlier = earlier_settings(folder)
    tables = [*(_settings(read_settings(path), config) for _, path in earlier), _now(config)]
    return [
        {"from_round": last + 1, "settings": _changes(before, after)}
        for (last, _), before, after in zip(earlier, tables, tables[1:], strict=False)
    ]


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what shapes a result, or its last bits, and differs; how many rounds there are shapes none."""
    was, now = flat(before), flat(after)
    keys = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
    return {
        key: {"before": was.get(key), "now": now.get(key)}
        for key in keys
        if (scope_of(key) not in NOT_IN_LABELS and key != "rounds") or key.startswith(_MOVES_BITS)
    }


def check_state(roster: Roster, state: ServerState) -> None:
    """Refuse a checkpoint whose tensors are not those of the method.

    Tensors without rows at the start have one for each client that has been visited.
    """
    visited: int | None = None
    for spec in roster.table:
        if not spec.stored:
            continue
        found = state.tensors.get(spec.name)
        shape = list(spec.shape)
        if found is not None and None in shape and found.ndim:
            visited = len(found) if visited is None else visited
            shape[0] = visited
        if found is None or (list(found.shape), found.dtype) != (shape, spec.dtype):
            raise RunFolderError(
                f"The checkpoint's {spec.name} does not fit {roster.method.name} on this data. "
                "Start again with --overwrite or another --out."
            )


def released_so_far(folder: RunFolder, clients: int, released: float) -> list[tuple[list[int], float]]:
    """Return what was released so far: no less than there was at the last checkpoint."""
    journal = folder.read_releases()
    found = sum(len(own) * count for own, count in journal)
    strange = any(client >= clients for own, _ in journal for client in own)
    if found < released * (1 - 1e-9) or strange:
        problem = ", some of unknown clients" if strange else f" where there were {released:g}"
        raise RunFolderError(
            f"{folder.path / 'releases.jsonl'} lists {found:g} releases{problem}: what was "
            "spent is not known. Put the file back, or start a new run."
        )
    return journal
