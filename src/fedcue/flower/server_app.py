"""The server's half of a deployment: a Flower ServerApp around the simulator's own run."""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import Field, ValidationError

from fedcue.clients.roster import Roster
from fedcue.config.layers import dump, load
from fedcue.config.settings import RunConfig
from fedcue.errors import ConfigError, RunFolderError
from fedcue.flower.engine import FlowerEngine, Patience
from fedcue.flower.enrolment import Enrolment
from fedcue.flower.network import Network
from fedcue.flower.register import Register
from fedcue.flower.sums import SumStore
from fedcue.flower.terms import Terms
from fedcue.foreign import read_toml
from fedcue.machine import one_thread
from fedcue.model.shapes import shape_of
from fedcue.options import Options
from fedcue.privacy.accounting import Ledger
from fedcue.record.folder import RunFolder
from fedcue.rounds.loop import Run
from fedcue.rounds.observers import TRAINING, Observer, Several, Tracking
from fedcue.rounds.result import Result
from fedcue.rounds.resume import released_so_far
from fedcue.types import Sizes

log = logging.getLogger(__name__)
app = ServerApp()


class Deployment(Options):
    """The server's settings in Flower's run config, ``--run-config 'key=value ...'``."""

    recipe: str = "default"
    settings: str = Field(default="", description="overrides as for fedcue run, such as 'rounds=3 seed=1'")
    out: str = Field(description="run folder, an absolute path on the server")
    clients: int = Field(default=0, ge=0, description="number of clients; 0: as many as the partition says")
    min_clients: int = Field(default=0, ge=0, description="clients that must be there to start; 0: all")
    bind_nodes: bool = Field(default=True, description="a client stays with the key of the node it came from")
    round_timeout: float = Field(default=600.0, gt=0, description="seconds a round waits for replies")
    step_timeout: float = Field(default=120.0, gt=0, description="seconds a step of a secure sum waits")
    node_timeout: float = Field(default=300.0, gt=0, description="seconds to wait for enough nodes")
    poll: float = Field(default=0.5, gt=0, description="seconds between looking for replies")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Deployment:
        """Read Flower's run config, whose keys may be written with hyphens."""
        try:
            return cls.model_validate({key.replace("-", "_"): value for key, value in values.items()})
        except ValidationError as error:
            lines = [f"{problem['loc'][0]}: {problem['msg']}" for problem in error.errors(include_url=False)]
            raise ConfigError("The run config does not describe a deployment: " + "; ".join(lines)) from error


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with the run in the folder ``out``."""
    tell_the_log()
    result = serve(grid, Deployment.of(context.run_config), LogObserver())
    for line in result.warnings:
        log.warning(line)
    log.info("mean accuracy %.1f%%, results in %s", 100 * result.mean_accuracy, result.folder)


def tell_the_log() -> None:
    """Show fedcue's messages, and no others, in the log that Flower streams."""
    own = logging.getLogger("fedcue")
    if not own.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("fedcue: %(message)s"))
        own.addHandler(handler)
    own.setLevel(logging.INFO)
    own.propagate = False


def serve(grid: Grid, deployment: Deployment, observer: Observer) -> Result:
    """Run a deployment to its end; a run folder with an unfinished run of it is continued."""
    config = load(deployment.recipe, shlex.split(deployment.settings))
    check(config)
    path = Path(deployment.out)
    folder = RunFolder(path, config.checkpoint.keep)
    resume = unfinished(path, config)
    folder.open(resume=resume, overwrite=not resume)
    try:
        shape = shape_of(config.backbone.name, config.backbone.image_size)
        clients = _clients(config, deployment)
        terms = Terms.of(run_name(path, config), config, _classes(config), shape, clients)
        patience = Patience(deployment.round_timeout, deployment.node_timeout, deployment.step_timeout)
        private = config.privacy.differential
        released = _released(folder, clients) if private and resume and folder.begun else None
        needed = min(deployment.min_clients or clients, clients)
        enrolment = Enrolment(Register.of(path), clients, needed, released)
        network = Network(grid, deployment.poll, deployment.bind_nodes)
        sums = SumStore(path / "sums", terms.run)
        engine = FlowerEngine(network, config, terms, shape, patience, enrolment, sums)
        _charge(folder, enrolment.earlier())
        with one_thread(), Tracking(config.log) as tracking:
            watching = Several(observer, tracking) if config.log else observer
            result = Run(engine, folder, watching).complete(resume)
            tracking.finished(result.summary)
            return result
    finally:
        folder.close()


def _released(folder: RunFolder, clients: int) -> dict[int, float]:
    """Return what the journal of a run that goes on says was released, by client."""
    before = folder.checkpoints.newest().totals.get("releases", 0)
    return _counted(released_so_far(folder, clients, before))


def _counted(journal: Iterable[tuple[Sequence[int], float]]) -> dict[int, float]:
    ledger = Ledger()
    for clients, count in journal:
        ledger.add(clients, count)
    return ledger.releases


def _charge(folder: RunFolder, earlier: Mapping[int, float]) -> None:
    """Count what clients released in earlier runs as if it had been released in this one."""
    if not earlier:
        return
    known = _counted(folder.read_releases())
    for client, count in earlier.items():
        more = count - known.get(client, 0)
        if more > 1e-6:
            folder.append_release([client], more)


def check(config: RunConfig) -> None:
    """Refuse settings that a deployment cannot honour."""
    if config.transport.name != "dense" or config.transport.dtype != "float32":
        raise ConfigError("A deployment sends whole float32 tensors: give transport=dense, float32.")
    if config.aggregate.sums_only and config.checkpoint.every != 1:
        raise ConfigError(
            "aggregate=secure needs checkpoint.every=1: no client takes part in two sums of one round, "
            "so that no round before the last can be done again."
        )
    if config.pooled:
        raise ConfigError(
            "pooled=true (method=central) needs all images in one place, and a deployment leaves them where "
            "they are. Use fedcue run, or another method."
        )
    if config.privacy.secret_sample:
        raise ConfigError(
            "privacy.sample=secret is for simulations: in a deployment who takes part follows from the seed, "
            "which every client is told. Give privacy.sample=known."
        )
    if config.privacy.differential and not config.checkpoint.every:
        raise ConfigError(
            "privacy=dp needs checkpoints, so that no round is released twice. Give checkpoint.every=1."
        )
    if _keeps_memory(config) and config.checkpoint.every != 1:
        raise ConfigError(
            f"With {config.method.name}, clients keep the memories of their last two visits only: give "
            "checkpoint.every=1, so that no resume needs an older one."
        )


def _keeps_memory(config: RunConfig) -> bool:
    """Tell whether clients keep tensors of their own; sizes of the task do not matter to that."""
    return bool(config.method.table(Sizes(1, 1, 1, 1, 1)).kept)


def unfinished(path: Path, config: RunConfig) -> bool:
    """Tell whether the folder holds a run of the same settings that can be continued.

    What was stopped before its first checkpoint may be replaced by a run with other settings, and a run
    without checkpoints starts anew.
    """
    file = path / "config.toml"
    if (path / "summary.json").is_file():
        raise RunFolderError(f"The run in {path} is finished. Give another out=FOLDER to start a new one.")
    checkpoints = any((path / "checkpoints").glob("round-*.ckpt"))
    if not file.is_file() or not (config.checkpoint.every or checkpoints):
        return False
    settings = read_toml(file)
    settings.pop("environment", None)
    if json.dumps(settings, sort_keys=True) != json.dumps(dump(config), sort_keys=True):
        if not checkpoints:
            return False
        raise RunFolderError(
            f"{path} holds an unfinished run with other settings. Give these again, or another out=FOLDER."
        )
    return True


def run_name(path: Path, config: RunConfig) -> str:
    """Name the run for the clients' disks: the same whenever it is continued."""
    text = json.dumps([str(path.absolute()), dump(config)], sort_keys=True)
    return f"{path.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _classes(config: RunConfig) -> tuple[str, ...]:
    """Return the class list all clients share: as the settings give it, or as the dataset is known to be."""
    if config.data.classes is not None:
        return tuple(config.data.classes)
    return config.data.outline(config.seed).classes


def _clients(config: RunConfig, deployment: Deployment) -> int:
    clients = deployment.clients or config.partition.planned_clients
    if not clients:
        raise ConfigError("The number of clients is not known: give clients=N in the run config.")
    return int(clients)


class LogObserver:
    """Writes the run's progress into the ServerApp's log, which ``flwr run --stream`` shows."""

    def started(self, roster: Roster, folder: Path) -> None:
        """Say who takes part."""
        log.info("%s with %d clients, results go to %s", roster.method.name, len(roster), folder)

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """Say what is being done besides rounds, when it begins."""
        if not done and name != TRAINING:
            log.info("%s", name)

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Report a round's numbers and who failed."""
        accuracy = record.get("mean_accuracy")
        shown = "" if accuracy is None else f", mean accuracy {accuracy:.1%}"
        log.info("round %d: %.1f s%s", record["round"], record["seconds"], shown)
        for failure in record.get("failures", []):
            log.warning("round %d: client %d: %s", record["round"], failure["client"], failure["reason"])
