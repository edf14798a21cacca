"""One federated run, from configuration to run folder."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from fedcue.config import RunConfig, dump
from fedcue.federate.evaluation import Evaluation, analyse, evaluate
from fedcue.federate.executor import Executor
from fedcue.federate.federation import Federation
from fedcue.federate.sampling import sample_clients, warm_start_clients
from fedcue.record.checkpoint import Checkpoint
from fedcue.record.folder import RunFolder
from fedcue.train.local import rate
from fedcue.types import ClientMemory, Download, ServerState, Update, count_bytes, count_floats


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


class Observer(Protocol):
    """Something that watches a run, such as a progress display."""

    def started(self, federation: Federation, folder: Path) -> None:
        """Learn what is about to run."""

    def stage(self, name: str) -> None:
        """Learn what is being done besides rounds."""

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Learn a round's metrics."""


class Silent:
    """Watches nothing."""

    def started(self, federation: Federation, folder: Path) -> None:
        """Do nothing."""

    def stage(self, name: str) -> None:
        """Do nothing."""

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Do nothing."""


@dataclass
class Traffic:
    """What travelled, counted from the tensors themselves."""

    upload_floats: int = 0
    download_floats: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0

    def down(self, download: Download) -> None:
        """Count a download."""
        self.download_floats += count_floats(download.tensors)
        self.download_bytes += count_bytes(download.tensors)

    def up(self, update: Update) -> Update:
        """Count an update and pass it on."""
        self.upload_floats += count_floats(update.tensors)
        self.upload_bytes += count_bytes(update.tensors)
        return update


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
    federation = Federation(config)
    folder.open(overwrite=overwrite, resume=resume)
    try:
        with Executor(federation, config.workers) as executor:
            return Run(executor, folder, observer or Silent()).complete(resume)
    finally:
        folder.close()


def default_folder(config: RunConfig) -> Path:
    """Return a new folder under ``runs/`` named after what is run and when."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{config.recipe}-{config.method.name}-seed{config.seed}-{stamp}"


@dataclass
class Run:
    """A run in progress."""

    executor: Executor
    folder: RunFolder
    observer: Observer
    memories: dict[int, ClientMemory] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.federation = self.executor.federation
        self.config = self.federation.config
        self.method = self.federation.method

    def complete(self, resume: bool) -> Result:
        """Start or resume, do all rounds, write the results."""
        self.observer.started(self.federation, self.folder.path)
        state = self._resume() if resume else self._start()
        while state.round < self.config.rounds:
            state = self._round(state)
        return self._finish(state)

    def _start(self) -> ServerState:
        self.folder.write_config(dump(self.config))
        self.observer.stage("warm start")
        started, traffic = time.perf_counter(), Traffic()
        clients = warm_start_clients(
            self.federation.training_clients, self.config.warm_start, self.config.seed
        )
        replies = (traffic.up(reply) for reply in self.executor.warm_up(clients))
        state = self.method.start(self.federation.setting, self.config.seed, replies)
        self.totals = {
            "warm_up_upload_floats": traffic.upload_floats,
            "warm_up_upload_bytes": traffic.upload_bytes,
            "seconds": time.perf_counter() - started,
        }
        self._snapshot(state)
        self._checkpoint(state, 0)
        return state

    def _resume(self) -> ServerState:
        checkpoint = self.folder.checkpoints.newest()
        self.folder.truncate_metrics(checkpoint.metrics_bytes)
        self.memories, self.totals = dict(checkpoint.memories), dict(checkpoint.totals)
        for record in self.folder.read_metrics():
            self.observer.finished_round(record)
        return checkpoint.state

    def _round(self, state: ServerState) -> ServerState:
        """Do one round: sample, download, train, aggregate, evaluate, record."""
        started, traffic, losses = time.perf_counter(), Traffic(), []
        seed, config = self.config.seed, self.config
        clients = sample_clients(
            self.federation.training_clients, config.clients_per_round, seed, state.round
        )
        jobs = []
        for client in clients:
            download = self.method.download(state, client, seed)
            traffic.down(download)
            jobs.append((download, self.memories.get(client, ClientMemory())))

        def updates() -> Any:
            for update, memory in self.executor.train(jobs):
                if self.method.keeps_memory:
                    self.memories[update.client] = memory
                losses.append(update.loss)
                yield traffic.up(update)

        rates = {name: rate(config.training, name, state.round) for name in ("head", "prompts")}
        state = self.method.aggregate(state, updates())
        record = {
            "round": state.round,
            "clients": clients,
            "lr": rates["prompts"],
            "head_lr": rates["head"],
            "train_loss": sum(losses) / len(losses),
            **vars(traffic),
        }
        every = config.evaluation.every
        if every and state.round % every == 0 and state.round < config.rounds:
            record |= evaluate(self.executor, state, self.memories).metrics()
        elif state.round == config.rounds:
            self._last = evaluate(self.executor, state, self.memories, final=True)
            record |= self._last.metrics()
        record["seconds"] = time.perf_counter() - started
        self.totals["seconds"] += record["seconds"]
        self._snapshot(state)
        self._checkpoint(state, self.folder.append_metrics(record))
        self.observer.finished_round(record)
        return state

    def _snapshot(self, state: ServerState) -> None:
        if state.round in self.config.snapshots:
            self.folder.write_snapshot(state.round, state.tensors)

    def _checkpoint(self, state: ServerState, metrics_bytes: int) -> None:
        every = self.config.checkpoint.every
        if every and (state.round % every == 0 or state.round == self.config.rounds):
            self.folder.checkpoints.write(Checkpoint(state, self.memories, metrics_bytes, self.totals))

    _last: Evaluation | None = None

    def _finish(self, state: ServerState) -> Result:
        self.observer.stage("writing the results")
        evaluation = self._last or evaluate(self.executor, state, self.memories, final=True)
        self.folder.write_clients(evaluation.client_rows())
        self.folder.write_memories(self.memories)
        self.folder.write_model(state.tensors, describe_model(self.federation))
        self.folder.write_analysis(analyse(self.federation, state, self.memories, evaluation))
        rounds = self.folder.read_metrics()
        sums = {name: sum(record[name] for record in rounds) for name in vars(Traffic())}
        summary = {
            "rounds": state.round,
            **evaluation.metrics(),
            "domains": evaluation.domains(),
            **{f"total_{name}": value for name, value in sums.items()},
            **self.totals,
            "workers": self.executor.workers,
            "frozen_cache": self.federation.cache.level,
            "bad_images": len(self.federation.pixels.bad),
            "peak_memory_mb": peak_memory_mb(),
        }
        self.folder.write_summary(summary)
        return Result(self.folder.path, summary, rounds)


def describe_model(federation: Federation) -> dict[str, Any]:
    """Return what is needed to use the trained tensors: method, classes, backbone, clients' priors."""
    settings = dump(federation.config)
    return {
        "format": "fedcue-model-1",
        "method": settings["method"],
        "backbone": settings["backbone"],
        "image_size": federation.model.architecture.image_size,
        "setting": vars(federation.setting),
        "seed": federation.config.seed,
        "rounds": federation.config.rounds,
        "training": settings["training"],
        "classes": list(federation.dataset.classes),
        "clients": {
            str(client.id): {
                "name": client.name,
                "class_priors": [round(float(prior), 8) for prior in client.class_priors],
            }
            for client in federation.clients
        },
    }


def peak_memory_mb() -> float:
    """Return the peak memory of this process and of its largest worker, in MiB."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024
