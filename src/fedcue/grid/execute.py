"""Run a grid: skip what is finished, go on with what was stopped, several runs at a time."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol

from fedcue.config import dump, resolve
from fedcue.errors import FedcueError, Interrupted, RunFolderError
from fedcue.federate import begin
from fedcue.federate.roster import Roster
from fedcue.federate.run import run
from fedcue.grid.cells import Cell
from fedcue.record.files import explained

State = Literal["finished", "stopped", "new", "other"]
"""What lies in a run's folder: its result, a part of it, nothing, or something else."""

NO_EFFECT = ("environment", "workers", "log")
"""Settings in ``config.toml`` on which a result does not depend."""

PRELOAD = (__name__, "sklearn.datasets", "torch._dynamo")
"""Imported once and shared by all runs; the last two are otherwise imported by each run at first use."""


class Watcher(Protocol):
    """Something that watches a grid, such as a progress display."""

    def planned(self, cells: Sequence[Cell], todo: Sequence[Cell]) -> None:
        """Learn which runs there are and which of them are still to be done."""

    def began(self, cell: Cell) -> None:
        """Learn that a run has begun."""

    def finished_round(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Learn a round's metrics."""

    def ended(self, cell: Cell, problem: str | None) -> None:
        """Learn that a run is finished, or why it is not."""


def run_grid(
    cells: Sequence[Cell], watcher: Watcher, *, at_once: int | None = None, overwrite: bool = False
) -> dict[Path, str]:
    """Run what is not finished yet; return what went wrong, by folder. Nothing runs if a folder is taken."""
    states = {cell.folder: state_of(cell) for cell in cells}
    taken = [cell for cell in cells if states[cell.folder] == "other"]
    if taken and not overwrite:
        raise RunFolderError(
            f"{taken[0].folder} holds something else: {difference(taken[0])}. "
            "Give another --out, or --overwrite to replace runs that differ."
        )
    todo = [cell for cell in cells if states[cell.folder] != "finished"]
    for parent in {cell.folder.parent for cell in todo}:
        with explained(parent):
            parent.mkdir(parents=True, exist_ok=True)
    watcher.planned(cells, todo)
    cores = len(os.sched_getaffinity(0))
    each = max((cell.config.workers for cell in todo), default=0)
    at_once = min(at_once or max(1, cores // max(each, 1)), max(len(todo), 1))
    return _run_all([_Task(cell, states[cell.folder], at_once) for cell in todo], at_once, watcher)


def state_of(cell: Cell) -> State:
    """Look into a run's folder."""
    entries = {entry.name for entry in cell.folder.iterdir()} if cell.folder.is_dir() else set()
    if entries <= {".lock"} and not cell.folder.is_file():
        return "new"
    if "config.toml" not in entries or difference(cell):
        return "other"
    if _readable(cell.folder / "summary.json"):
        return "finished"
    return "stopped"


def difference(cell: Cell) -> str:
    """Say how the configuration in a run's folder differs from the cell's, or nothing."""
    return begin.difference(cell.config, cell.folder, NO_EFFECT)


def _readable(summary: Path) -> bool:
    try:
        return isinstance(json.loads(summary.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError, RecursionError):
        return False


@dataclass(frozen=True)
class _Task:
    """A cell with how to begin it."""

    cell: Cell
    state: State
    at_once: int

    def arguments(self) -> tuple[dict[str, Any], str, dict[str, bool]]:
        """Return plain settings, folder and flags for another process."""
        settings = dump(self.cell.config)
        if self.at_once > 1:
            settings["workers"] = settings["workers"] or 1
        begun = self.state == "stopped" and any((self.cell.folder / "checkpoints").glob("round-*.ckpt"))
        return settings, str(self.cell.folder), {"resume": begun, "overwrite": not begun}


@dataclass
class _Active:
    """A run in another process."""

    task: _Task
    process: BaseProcess
    problem: str | None = "its process died (killed, or out of memory). Run the same command again to go on"


def _run_all(tasks: Sequence[_Task], at_once: int, watcher: Watcher) -> dict[Path, str]:
    waiting, problems = list(tasks), dict[Path, str]()
    active: dict[Connection, _Active] = {}
    try:
        while waiting or active:
            while waiting and len(active) < at_once:
                connection, begun = _begin(waiting.pop(0))
                active[connection] = begun
                watcher.began(begun.task.cell)
            for ready in wait(list(active)):
                assert isinstance(ready, Connection)
                if _listen(ready, active[ready], watcher):
                    continue
                ended = active.pop(ready)
                ended.process.join()
                watcher.ended(ended.task.cell, ended.problem)
                if ended.problem is not None:
                    problems[ended.task.cell.folder] = ended.problem
    finally:
        for left in active.values():
            left.process.terminate()
            left.process.join()
    return problems


def _begin(task: _Task) -> tuple[Connection, _Active]:
    """Start a run in a process forked from a server that has imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(*task.arguments(), theirs))
    process.start()
    theirs.close()
    return ours, _Active(task, process)


def _listen(connection: Connection, active: _Active, watcher: Watcher) -> bool:
    """Take one message of a run; return whether more can come."""
    try:
        kind, content = connection.recv()
    except (EOFError, OSError):
        connection.close()
        return False
    if kind == "round":
        watcher.finished_round(active.task.cell, content)
    else:
        active.problem = content
    return True


class _Sender:
    """Watches a run in its own process; stops it when nobody listens any more."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def started(self, roster: Roster, folder: Path) -> None:
        """Do nothing."""

    def stage(self, name: str) -> None:
        """Do nothing."""

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Send a round's metrics."""
        self.connection.send(("round", dict(record)))


def _work(settings: dict[str, Any], folder: str, flags: dict[str, bool], connection: Connection) -> None:
    """Do one run in this process and send how it went."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    log = Path(f"{folder}.error.txt")
    log.unlink(missing_ok=True)
    try:
        config = resolve(settings, name=settings["recipe"])
        run(config, folder, observer=_Sender(connection), **flags)
        connection.send(("end", None))
    except FedcueError as error:
        connection.send(("end", str(error)))
    except (KeyboardInterrupt, Interrupted, BrokenPipeError):
        sys.exit(1)
    except Exception as error:
        log.write_text(traceback.format_exc(), encoding="utf-8")
        connection.send(("end", f"{type(error).__name__}: {error} (details in {log})"))


def finished(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Path]]:
    """Return the folders of the finished runs by method and variant, in the order of the grid."""
    groups: dict[tuple[str, str], list[Path]] = {(cell.method, cell.variant): [] for cell in cells}
    for cell in cells:
        if state_of(cell) == "finished":
            groups[cell.method, cell.variant].append(cell.folder)
    return groups
