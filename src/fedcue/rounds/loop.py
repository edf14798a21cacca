"""One federated run, from configuration to run folder: a round reads from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcue.clients.federation import load_federation
from fedcue.config.layers import dump
from fedcue.config.settings import RunConfig
from fedcue.errors import BudgetSpent, CannotWrite, ConfigError, FedcueError, shown
from fedcue.evaluate.accuracy import Accuracies
from fedcue.machine import peak_memory_mb
from fedcue.record.checkpoint import Checkpoint
from fedcue.record.folder import RunFolder
from fedcue.rounds.engine import Engine, Failure, checked, reasons, tested
from fedcue.rounds.executor import engine_for
from fedcue.rounds.observers import TRAINING, Observer, Several, Tracking, telling
from fedcue.rounds.progress import watched
from fedcue.rounds.result import Result, describe_model, of_the_end, over_rounds
from fedcue.rounds.resume import (
    changed_settings,
    check_same_run,
    check_state,
    default_folder,
    keep_settings,
    released_so_far,
)
from fedcue.rounds.round_record import Patience, RoundRecord
from fedcue.rounds.transport import Traffic, Wire, check_transport
from fedcue.types import ClientMemory, Download, ServerState

ATTEMPTS = 10
"""How often a round is drawn again before the run gives up."""


def run(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Run a configuration (of ``fedcue.configure``) and leave the result in the folder ``out``.

    Without ``out``, a new folder below ``runs`` is made. ``overwrite`` replaces a run that is already there,
    ``resume`` goes on with it. Without an ``observer``, progress is shown in a terminal or a notebook and
    nowhere else. The result has ``folder``, which ``fedcue.load`` takes, ``mean_accuracy``, ``summary`` and
    ``rounds``.
    """
    if not isinstance(config, RunConfig):
        raise ConfigError(f"{shown(config)} is no configuration: give fedcue.configure(RECIPE, SETTINGS).")
    check_transport(config)
    folder = RunFolder(Path(out) if out else default_folder(config), config.checkpoint.keep)
    tracking = Tracking(config.log)
    with watched(observer) as display:
        federation = load_federation(config, display.stage)
        folder.open(overwrite=overwrite, resume=resume)
        try:
            if resume:
                check_same_run(config, folder.path)
            with federation.host.stop.on_signals(), engine_for(federation, display.stage) as engine, tracking:
                result = Run(engine, folder, Several(display, tracking)).complete(resume)
                tracking.finished(result.summary)
                return result
        finally:
            folder.close()


@dataclass
class Run:
    """A run in progress."""

    engine: Engine
    folder: RunFolder
    observer: Observer
    memories: dict[int, ClientMemory] = field(default_factory=dict)
    totals: dict[str, Any] = field(default_factory=dict)
    accuracies: Accuracies | None = None
    settings: dict[str, Any] = field(init=False)
    last: Checkpoint = field(init=False)

    def __post_init__(self) -> None:
        self.roster = self.engine.roster
        self.config = self.roster.config
        self.method = self.roster.method
        self.budget = self.roster.budget.fresh()
        if not self.roster.repeats_noise:
            self.budget.journal = self.folder.append_release
        self.wire = Wire(self.config, self.roster.table)
        self.patience = Patience(self.config.evaluation.patience)

    def complete(self, resume: bool) -> Result:
        """Start or resume, do all rounds, write the results."""
        self.observer.started(self.roster, self.folder.path)
        state = self._resume() if resume and self.folder.begun else self._start()
        try:
            return self._finish(self._all_rounds(state))
        except Exception as error:
            with suppress(CannotWrite):  # the first failure is the one to tell of
                self.folder.checkpoints.write(self.last)
            if isinstance(error, CannotWrite) and self.folder.checkpoints.any():
                way_on = f"fedcue resume {self.folder.path} goes on from the last one"
                raise CannotWrite(f"{error} Checkpoints written before are intact; {way_on}.") from error
            raise

    def _all_rounds(self, state: ServerState) -> ServerState:
        """Do rounds until all are done, none gets better, or the next would spend more than is allowed."""
        try:
            while state.round < self.config.rounds and not self.patience.over:
                state = self._round(state)
            if state.round < self.config.rounds:
                self.totals["ended_early"] = self.patience.over
        except BudgetSpent as reason:
            if not state.round:
                raise
            self.totals["ended_early"] = str(reason)
        return state

    def _round(self, state: ServerState) -> ServerState:
        """Do one round: sample, send, train, add up, aggregate, evaluate, record."""
        earlier = [] if state.round else self.totals.get("warm_up_failures", [])
        record = RoundRecord(state.round + 1, [{"step": "warm up", **failure} for failure in earlier])
        for attempt in range(ATTEMPTS):
            clients = self.roster.visited(state.round, attempt)
            self._spend(clients, state.round, record.failed)
            record.draw(attempt, clients)
            self.wire.traffic = Traffic()
            adding = self.roster.protection.adding(state.tensors, state.round)
            jobs = (self._job(state, client) for client in clients)
            for outcome in telling(self.observer, TRAINING, len(clients), self.engine.train(jobs)):
                if isinstance(outcome, Failure):
                    record.failure(outcome)
                else:
                    update = record.update(*outcome)
                    adding.add(self.wire.upload(update, state.tensors))
            if len(record.losses) >= self.roster.needed_updates:
                break
        else:
            raise FedcueError(self._too_few_updates(state, record.failed))
        after = checked(self.method.aggregate(state, adding.sums()))

        if self.roster.table.kept:
            self.memories |= record.memories
        self.wire.note_changes(state, after)

        last, every = after.round == self.config.rounds, self.config.evaluation.every
        if last or (every and after.round % every == 0):
            accuracies = tested(self.engine, after, self.memories, last)
            self.patience.add(record.tested(accuracies))
            self.accuracies = accuracies if last else None

        line = record.line(self.config.training, vars(self.wire.traffic), self.budget.metrics())
        self.totals["seconds"] += line["seconds"]
        self.folder.append_metrics(line)
        self._checkpoint(after)
        self.observer.finished_round(line | self.engine.news())
        return after

    def _start(self) -> ServerState:
        """Ask clients what the method wants to know before round 0, and make the first state of it."""
        self.settings = self.folder.write_config(dump(self.config))
        started, answered, failures = time.perf_counter(), 0, []
        asked = list(self.roster.schedule.first())
        self.budget.recount(self.folder.read_releases())
        self.budget.warm_up()
        adding = self.roster.protection.adding({}, "warm up")
        for reply in telling(self.observer, "warm start", len(asked), self.engine.warm_up(asked)):
            if isinstance(reply, Failure):
                failures.append(reply)
            else:
                answered += 1
                adding.add(self.wire.first_reply(reply))
        least = self.config.aggregate.needed(len(asked))
        if self.roster.table.replied and answered < least:
            raise FedcueError(
                f"{answered} clients answered before round 0, aggregate={self.config.aggregate.name} needs "
                f"at least {least}{reasons(failures)}. Mend the clients, then repeat."
            )
        state = checked(self.method.start(self.roster.sizes, self.config.seed, adding.sums()))
        self.totals = {
            "warm_up_upload_floats": self.wire.traffic.upload_floats,
            "warm_up_upload_bytes": self.wire.traffic.upload_bytes,
            "seconds": time.perf_counter() - started,
        }
        if failures:
            self.totals["warm_up_failures"] = [vars(failure) for failure in failures]
        self._checkpoint(state)
        return state

    def _resume(self) -> ServerState:
        """Go on from the newest checkpoint."""
        checkpoint = self.folder.checkpoints.newest()
        check_state(self.roster, checkpoint.state)
        self.folder.truncate_metrics(checkpoint.metrics_bytes, checkpoint.metrics_digest)
        self.memories, self.totals = dict(checkpoint.memories), dict(checkpoint.totals)
        released = self.totals.pop("releases", 0)
        self.wire.remember(checkpoint.transport)
        records = self.folder.read_metrics()
        if self.roster.repeats_noise:
            self.budget.replay(records, ATTEMPTS)
        else:
            self.budget.recount(released_so_far(self.folder, len(self.roster), released))
        self.patience.add(*records)
        for record in records:
            self.observer.finished_round(record)
        keep_settings(self.config, self.folder.path, checkpoint)
        self.settings = self.folder.write_config(dump(self.config))
        self.last = checkpoint
        return checkpoint.state

    def _job(self, state: ServerState, client: int) -> tuple[Download, ClientMemory]:
        """Return what a client is sent for a round and what it keeps."""
        sent = self.method.download(state, client, self.roster.sizes, self.config.seed)
        memory = self.memories.get(client, ClientMemory())
        return self.wire.download(Download(client, state.round, sent)), memory

    def _spend(self, clients: Sequence[int], round_: int, failed: Sequence[Failure]) -> None:
        """Count the releases of a round, or say why it had to be drawn again until nothing was left."""
        try:
            self.budget.visit(clients, round_)
        except BudgetSpent as spent:
            again = f" It was drawn again because clients failed{reasons(failed)}." if failed else ""
            raise BudgetSpent(f"{spent}{again}") from spent

    def _too_few_updates(self, state: ServerState, failed: Sequence[Failure]) -> str:
        return (
            f"Round {state.round + 1} got fewer than min_updates={self.roster.needed_updates} updates in "
            f"{ATTEMPTS} draws{reasons(failed)}. Mend the clients or lower the learning rates, "
            "then resume."
        )

    def _checkpoint(self, state: ServerState) -> None:
        """Keep the state after a round; an unfinished next round must not change it."""
        if state.round in self.config.snapshots:
            self.folder.write_snapshot(state.round, state.tensors)
        place, digest = self.folder.metrics_bytes, self.folder.metrics_digest
        memories, totals = dict(self.memories), {**self.totals, "releases": self.budget.released}
        transport, settings = self.wire.memory(), self.settings
        self.last = Checkpoint(state, memories, place, digest, totals, transport, settings)
        every = self.config.checkpoint.every
        if every and (state.round % every == 0 or state.round == self.config.rounds):
            self.folder.checkpoints.write(self.last)

    def _finish(self, state: ServerState) -> Result:
        """Test once more if the last round was not tested, and write the results."""
        accuracies = self.accuracies or tested(self.engine, state, self.memories, last=True)
        insight = self.engine.insight(state, self.memories, accuracies)
        self.folder.write_clients(accuracies.client_rows())
        self.folder.write_memories(insight.memories)
        self.folder.write_model(state.tensors, describe_model(self.roster, state.round, insight))
        self.folder.write_analysis(insight.analysis)
        rounds = self.folder.read_metrics()
        changed = changed_settings(self.config, self.folder.path)
        summary = {
            "rounds": state.round,
            **of_the_end(accuracies),
            **over_rounds(self.config, rounds),
            **({"changed_settings": changed} if changed else {}),
            **self.totals,
            "workers": self.engine.workers,
            **insight.numbers,
            "peak_memory_mb": peak_memory_mb(),
            **self.budget.summary(),
        }
        self.folder.write_summary(summary)
        return Result(self.folder.path, summary, rounds)
