"""Test a finished run again under settings that matter at test time only."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fedcue.after.trained import check_sizes, load_memories, load_state
from fedcue.clients.federation import load_federation
from fedcue.clients.roster import Roster
from fedcue.config.layers import dump, load_folder, parse
from fedcue.config.settings import RunConfig
from fedcue.config.words import folder_name
from fedcue.errors import ConfigError, RunFolderError
from fedcue.evaluate.accuracy import Accuracies
from fedcue.foreign import STRANGE
from fedcue.machine import network
from fedcue.record.folder import RunFolder, read_metrics, read_summary
from fedcue.rounds.engine import tested
from fedcue.rounds.executor import engine_for
from fedcue.rounds.observers import Stage
from fedcue.rounds.result import Result, describe_model
from fedcue.rounds.resume import check_state
from fedcue.types import ClientMemory, ServerState

TEST_ONLY = (
    "method.logit_prior",
    "evaluation.priors",
    "evaluation.temperature",
    "evaluation.labelled",
)
"""Settings that change what is measured and not what was trained."""

PLACES = ("data.root", "backbone", "device", "workers", "engine", "cache.limit_mb", "cache.folder")
"""Settings that say where things are and how they are computed."""


def retest(
    folder: str | Path,
    changes: Iterable[str],
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    trusted: Collection[str] = (),
    fetch: bool = False,
    tell: Stage | None = None,
) -> Result:
    """Test the final state of the run in ``folder`` again and leave a run folder beside it.

    The result is what a run with the changed settings would have left: trained tensors and what
    travelled are the old run's, accuracies are those of the last round. The folder may be a stranger's:
    of classes by import path only ``trusted`` ones are imported, and nothing is downloaded without ``fetch``.
    """
    folder, overrides = Path(folder), parse(changes)
    config = _changed(folder, overrides, trusted)
    asked = {key: value for key, value in overrides.items() if key in TEST_ONLY}
    place = Path(out) if out else folder.parent / folder_name(config.method.name, asked, config.seed)
    if place.resolve() == folder.resolve():
        raise ConfigError(f"{place} is the run itself, which is never changed. Give another --out.")
    summary = read_summary(folder)
    with network(fetch):
        federation = load_federation(config, tell)
    state, memories = _trained(folder, summary, federation.roster)
    target, started = RunFolder(place), time.perf_counter()
    target.open(overwrite=overwrite)
    try:
        with federation.host.stop.on_signals(), engine_for(federation, tell) as engine:
            found = tested(engine, state, memories, last=True)
            insight = engine.insight(state, memories, found)
        target.write_config(dump(config))
        target.write_clients(found.client_rows())
        target.write_memories(memories)
        target.write_model(state.tensors, describe_model(federation.roster, state.round, insight))
        target.write_analysis(insight.analysis)
        rounds = _rounds(folder, found)
        for record in rounds:
            target.append_metrics(record)
        for of_before in ("untested", "last_rounds_mean_accuracy", "best_validation"):
            summary.pop(of_before, None)
        summary |= {**found.metrics(), "domains": found.domains()}
        if found.untested():
            summary["untested"] = found.untested()
        summary["tested_again"] = {"of": folder.name, "seconds": time.perf_counter() - started}
        target.write_summary(summary)
    finally:
        target.close()
    return Result(place, summary, rounds)


def _changed(folder: Path, overrides: Mapping[str, Any], trusted: Collection[str]) -> RunConfig:
    """Return the run's configuration with the changes, all of which must leave training as it was."""
    foreign = [key for key in overrides if key not in (*TEST_ONLY, *PLACES)]
    if foreign:
        raise ConfigError(
            f"{foreign[0]} would change the run itself. Give {' or '.join(TEST_ONLY)} "
            f"(or, if things have moved, {', '.join(PLACES)}), or repeat the run."
        )
    before, after = load_folder(folder, None, trusted), load_folder(folder, overrides, trusted)
    kinds = {before.method.logit_prior, after.method.logit_prior}
    if len(kinds) > 1 and "train+test" in kinds:
        raise ConfigError(
            "method.logit_prior=train+test takes part in training. A finished run can be tested again "
            "with none, mask or test only if it was trained with one of these; repeat the run."
        )
    return after


def _trained(
    folder: Path, summary: Mapping[str, Any], roster: Roster
) -> tuple[ServerState, dict[int, ClientMemory]]:
    """Return what was trained, at the server and at its clients; it must be what the method has here."""
    try:
        state, memories = ServerState(int(summary["rounds"]), load_state(folder)), load_memories(folder)
        check_sizes(roster.table, state.tensors, *(memory.tensors for memory in memories.values()))
    except (*STRANGE, SafetensorError) as error:
        raise RunFolderError(f"{folder} does not hold a trained model: {error}. Finish the run.") from error
    check_state(roster, state)
    return state, memories


def _rounds(folder: Path, found: Accuracies) -> list[dict[str, Any]]:
    """Return the run's rounds: what travelled is the same, accuracies are known of the last one only."""
    rounds = [
        {key: value for key, value in record.items() if not key.endswith("accuracy")}
        for record in read_metrics(folder)
    ]
    if rounds:
        rounds[-1] |= found.metrics()
    return rounds
