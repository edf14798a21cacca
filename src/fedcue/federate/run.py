"""One federated run, from configuration to run folder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcue.config import dump
from fedcue.errors import BudgetSpent, FedcueError, Interrupted, RunFolderError
from fedcue.federate.begin import check_same_run, check_state, default_folder
from fedcue.federate.engine import Engine, Failure
from fedcue.federate.evaluation import Evaluation
from fedcue.federate.exchange import Exchange, Traffic
from fedcue.federate.executor import Executor
from fedcue.federate.federation import Federation
from fedcue.federate.observer import Observer, Several, Silent
from fedcue.federate.roster import Roster
from fedcue.federate.sampling import sample_clients, warm_start_clients
from fedcue.federate.tracking import Tracking
from fedcue.federate.transport import Transport
from fedcue.memory import peak_memory_mb
from fedcue.record.checkpoint import Checkpoint
from fedcue.record.folder import RunFolder
from fedcue.settings import RunConfig
from fedcue.train.local import rate
from fedcue.types import ClientMemory, ServerState, Update

ATTEMPTS = 10
"""How often a round is drawn again before the run gives up."""


@dataclass(frozen=True)
class Result:
    """A finished run: where it lies, its final metrics and the metrics of every round."""

    folder: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]

    @property
    def mean_accuracy(self) -> float:
        """Mean accuracy over the clients that train, after the last round."""
        return float(self.summary["mean_accuracy"])

    @property
    def warnings(self) -> list[str]:
        """What a reader of its accuracies must know: that it ended early, who is not in them."""
        early, untested = self.summary.get("ended_early"), self.summary.get("untested", [])
        names = ", ".join(str(failure["client"]) for failure in untested[:10])
        return [
            *[f"ended after round {self.summary['rounds']}: {early}"] * bool(early),
            *[f"{len(untested)} clients could not be tested and are left out: {names}"] * bool(untested),
        ]


def run(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Run a configuration and leave the result in the folder ``out``."""
    folder = RunFolder(Path(out) if out else default_folder(config), config.checkpoint.keep)
    tracking = Tracking(config.log)
    federation = Federation(config)
    folder.open(overwrite=overwrite, resume=resume)
    try:
        if resume:
            check_same_run(config, folder.path)
        with federation.stop.on_signals(), Executor(federation, config.workers) as executor, tracking:
            watching = Several(observer or Silent(), tracking)
            result = Run(executor, folder, watching).complete(resume)
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
    evaluation: Evaluation | None = None
    last: Checkpoint = field(init=False)

    def __post_init__(self) -> None:
        self.roster = self.engine.roster
        self.config = self.roster.config
        self.method = self.roster.method
        self.budget = self.roster.budget.fresh()
        if not self.roster.repeats_noise:
            self.budget.journal = self.folder.append_release
        self.transport = Transport(self.config)

    def complete(self, resume: bool) -> Result:
        """Start or resume, do all rounds, write the results."""
        self.observer.started(self.roster, self.folder.path)
        state = self._resume() if resume and self.folder.begun else self._start()
        try:
            return self._finish(self._all_rounds(state))
        except (Interrupted, FedcueError):
            self.folder.checkpoints.write(self.last)
            raise

    def _all_rounds(self, state: ServerState) -> ServerState:
        """Do rounds until all are done, or the next one would spend more privacy than is allowed."""
        try:
            while state.round < self.config.rounds:
                state = self._round(state)
        except BudgetSpent as reason:
            if not state.round:
                raise
            self.totals["ended_early"] = str(reason)
        return state

    def _start(self) -> ServerState:
        self.folder.write_config(dump(self.config))
        self.observer.stage("warm start")
        started, traffic = time.perf_counter(), Traffic()
        clients = warm_start_clients(self.roster.training_clients, self.config.warm_start, self.config.seed)
        failures: list[Failure] = []
        self.budget.recount(self.folder.read_releases())
        self.budget.warm_up()
        replies = self._warm_up_replies(clients, traffic, failures)
        combine = self.roster.protection.combine({}, "warm up")
        state = self.method.start(self.roster.setting, self.config.seed, replies, combine)
        self.totals = {
            "warm_up_upload_floats": traffic.upload_floats,
            "warm_up_upload_bytes": traffic.upload_bytes,
            "seconds": time.perf_counter() - started,
            **({"warm_up_failures": [vars(failure) for failure in failures]} if failures else {}),
        }
        self._snapshot(state)
        self._checkpoint(state)
        return state

    def _warm_up_replies(
        self, clients: Sequence[int], traffic: Traffic, failures: list[Failure]
    ) -> Iterator[Update]:
        answered = 0
        for reply in self.engine.warm_up(clients):
            if isinstance(reply, Failure):
                failures.append(reply)
                continue
            answered += 1
            self.transport.learn(reply)
            message, received = self.transport.upload(reply, {})
            traffic.up(message)
            yield received
        least = self.config.aggregate.least
        if self.method.replied() and answered < least:
            raise FedcueError(
                f"{answered} clients answered before round 0, aggregate={self.config.aggregate.name} needs "
                f"at least {least}{_first(failures)}. Mend the clients, then repeat."
            )

    def _resume(self) -> ServerState:
        checkpoint = self.folder.checkpoints.newest()
        check_state(self.roster, checkpoint.state)
        self.folder.truncate_metrics(checkpoint.metrics_bytes, checkpoint.metrics_digest)
        self.memories, self.totals = dict(checkpoint.memories), dict(checkpoint.totals)
        released = self.totals.pop("releases", 0)
        self.transport.remember(checkpoint.transport)
        records = self.folder.read_metrics()
        if self.roster.repeats_noise:
            self.budget.replay(records, ATTEMPTS)
        else:
            self.budget.recount(self._journal(released))
        for record in records:
            self.observer.finished_round(record)
        self.folder.write_config(dump(self.config))
        self.last = checkpoint
        return checkpoint.state

    def _journal(self, released: int) -> list[tuple[list[int], int]]:
        """Return what was released so far: no less than there was at the last checkpoint."""
        journal = self.folder.read_releases()
        found = sum(len(clients) * count for clients, count in journal)
        strange = any(client >= len(self.roster) for clients, _ in journal for client in clients)
        if found < released or strange:
            raise RunFolderError(
                f"{self.folder.path / 'releases.jsonl'} tells of {found} releases"
                f"{', some of unknown clients' if strange else f' where there were {released}'}: what was "
                "spent is not known. Put the file back, or start a new run."
            )
        return journal

    def _round(self, state: ServerState) -> ServerState:
        """Do one round: sample, download, train, aggregate, evaluate, record."""
        started = time.perf_counter()
        record = {"round": state.round + 1, **self._rates(state.round)}
        state = self._train(state, record)
        last = state.round == self.config.rounds
        every = self.config.evaluation.every
        if last or (every and state.round % every == 0):
            evaluation = self.engine.evaluate(state, self.memories, final=last)
            record |= evaluation.metrics() | _with_missing(record, evaluation)
            self.evaluation = evaluation if last else None
        record["seconds"] = time.perf_counter() - started
        self.totals["seconds"] += record["seconds"]
        self._snapshot(state)
        self.folder.append_metrics(record)
        self._checkpoint(state)
        self.observer.finished_round(record)
        return state

    def _rates(self, finished_rounds: int) -> dict[str, Any]:
        training = self.config.training
        rates = {"lr": "prompts", "head_lr": "head"}
        return {key: rate(training, name, finished_rounds) for key, name in rates.items()}

    def _train(self, state: ServerState, record: dict[str, Any]) -> ServerState:
        """Train sampled clients; draw again, from the same stream, while too few updates come."""
        before = self.totals.get("warm_up_failures", []) if state.round == 0 else []
        failures: list[dict[str, Any]] = [{"step": "warm up", **failure} for failure in before]
        failed: list[Failure] = []
        for attempt in range(ATTEMPTS):
            sampled = sample_clients(self.roster.training_clients, self.config, state.round, attempt)
            self._spend(sampled, state.round, failed)
            exchange = Exchange(self.method, self.engine, self.transport, self.memories, self.config.seed)
            after = exchange.run(state, sampled)
            failed = exchange.failures
            failures += [{"step": "train", "attempt": attempt, **vars(failure)} for failure in failed]
            if after is not None and len(exchange.losses) >= self.roster.needed_updates:
                self.memories |= exchange.memories
                self.transport.note_changes(state.tensors, after.tensors, after.round)
                record |= {"clients": sampled, **exchange.metrics(), **self.budget.metrics()}
                record |= {"failures": failures} if failures else {}
                return after
        raise FedcueError(
            f"Round {state.round + 1} got fewer than min_updates={self.roster.needed_updates} updates in "
            f"{ATTEMPTS} draws{_first(failed)}. Mend the clients or lower the learning rates, "
            "then resume."
        )

    def _spend(self, clients: Sequence[int], round_: int, failed: Sequence[Failure]) -> None:
        """Count the releases of a round, or say why it had to be drawn again until nothing was left."""
        try:
            self.budget.visit(clients, round_)
        except BudgetSpent as spent:
            again = f" It was drawn again because clients failed{_first(failed)}." if failed else ""
            raise BudgetSpent(f"{spent}{again}") from spent

    def _snapshot(self, state: ServerState) -> None:
        if state.round in self.config.snapshots:
            self.folder.write_snapshot(state.round, state.tensors)

    def _checkpoint(self, state: ServerState) -> None:
        """Remember how things are after a round, of which an unfinished next one must change nothing."""
        place, digest = self.folder.metrics_bytes, self.folder.metrics_digest
        memories, totals = dict(self.memories), {**self.totals, "releases": self.budget.released}
        self.last = Checkpoint(state, memories, place, digest, totals, self.transport.memory())
        every = self.config.checkpoint.every
        if every and (state.round % every == 0 or state.round == self.config.rounds):
            self.folder.checkpoints.write(self.last)

    def _finish(self, state: ServerState) -> Result:
        self.observer.stage("writing the results")
        evaluation = self.evaluation or self.engine.evaluate(state, self.memories, final=True)
        insight = self.engine.insight(state, self.memories, evaluation)
        self.folder.write_clients(evaluation.client_rows())
        self.folder.write_memories(insight.memories)
        self.folder.write_model(state.tensors, describe_model(self.roster, state.round, insight.class_priors))
        self.folder.write_analysis(insight.analysis)
        rounds = self.folder.read_metrics()
        sums = {name: sum(record[name] for record in rounds) for name in vars(Traffic())}
        summary = {
            "rounds": state.round,
            **evaluation.metrics(),
            "domains": evaluation.domains(),
            **evaluation.untested(),
            **{f"total_{name}": value for name, value in sums.items()},
            **self.totals,
            "workers": self.engine.workers,
            **insight.facts,
            "peak_memory_mb": peak_memory_mb(),
            **self.budget.summary(),
        }
        self.folder.write_summary(summary)
        return Result(self.folder.path, summary, rounds)


def _first(failures: Sequence[Failure]) -> str:
    """Return the reasons of the first failures in brackets, if there are any."""
    reasons = "; ".join(f"client {failure.client}: {failure.reason}" for failure in failures[:3])
    return f" ({reasons})" if reasons else ""


def _with_missing(record: Mapping[str, Any], evaluation: Evaluation) -> dict[str, Any]:
    """Return the round's failures with those of its evaluation, if there are any."""
    missing = [{"step": "evaluate", **failure} for failure in evaluation.untested().get("untested", [])]
    return {"failures": [*record.get("failures", []), *missing]} if missing else {}


def describe_model(
    roster: Roster, rounds: int, class_priors: Mapping[int, NDArray[np.float64]]
) -> dict[str, Any]:
    """Return what is needed to use the trained tensors: method, classes, backbone, known priors."""
    settings = dump(roster.config)
    clients: dict[str, dict[str, Any]] = {str(c): {"name": roster.names[c]} for c in roster.listed.tolist()}
    for client, priors in class_priors.items():
        clients[str(client)]["class_priors"] = [round(float(prior), 8) for prior in priors]
    return {
        "format": "fedcue-model-1",
        "method": settings["method"],
        "backbone": settings["backbone"],
        "image_size": roster.architecture.image_size,
        "precision": settings["precision"],
        "setting": vars(roster.setting),
        "seed": roster.config.seed,
        "rounds": rounds,
        "training": settings["training"],
        "classes": list(roster.classes),
        "clients": clients,
    }
