"""Run a grid: skip what is finished, go on with what was stopped, several runs at a time."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol

from fedcue.config.layers import dump
from fedcue.errors import RunFolderError
from fedcue.foreign import text_of
from fedcue.grid.cells import Cell
from fedcue.grid.worker import Retest, Start, Task, work
from fedcue.plan.dry_run import matmul_gflops, plan
from fedcue.record.files import explained
from fedcue.rounds.resume import differing

State = Literal["finished", "stopped", "new", "other"]
"""The content of a run's folder: its result, a part of it, nothing, or something else."""

_PRELOAD = ("fedcue.grid.worker", "torch._dynamo")
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


_Retests = Mapping[Path, Sequence[Retest]]
"""By the folder of a run what it is tested with when it is finished."""


def run_grid(
    cells: Sequence[Cell],
    watcher: Watcher,
    *,
    at_once: int | None = None,
    overwrite: bool = False,
    tests: _Retests | None = None,
) -> dict[Path, str]:
    """Run what is not finished yet; return what went wrong, by folder. Nothing runs if a folder is taken."""
    states = {cell.folder: state_of(cell) for cell in cells}
    taken = [cell for cell in cells if states[cell.folder] == "other"]
    if taken and not overwrite:
        raise RunFolderError(
            f"{taken[0].folder} holds something else: {difference(taken[0])}. "
            "Give another --out, or --overwrite to replace runs that differ."
        )
    todo = [cell for cell in cells if states[cell.folder] != "finished" or _untested(cell, tests or {})]
    for parent in {cell.folder.parent for cell in todo}:
        with explained(parent):
            parent.mkdir(parents=True, exist_ok=True)
    watcher.planned(cells, todo)
    with place_for(todo) as place:
        at_once = runs_at_once(todo, at_once, place.workers)
        planned = [(cell, _task(cell, states[cell.folder], at_once, place, tests or {})) for cell in todo]
        return _run_all(planned, at_once, watcher)


@dataclass(frozen=True)
class Place:
    """Where runs go on: how many workers have room, and the address of the cluster if it is one."""

    workers: int
    cluster: str | None = None


@contextmanager
def place_for(cells: Sequence[Cell]) -> Iterator[Place]:
    """Return this machine's cores or, for runs with ``engine=ray``, one cluster for all of them."""
    on_ray = [cell.config for cell in cells if cell.config.engine.name == "ray"]
    if not on_ray:
        yield Place(len(os.sched_getaffinity(0)))
        return
    from fedcue.rounds.on_ray.cluster import joined

    with joined(on_ray[0]) as cluster:
        yield Place(sum(cluster.room().values()), cluster.address)


def seconds_of(cells: Sequence[Cell]) -> list[float]:
    """Return the seconds of each run on one core; runs that differ in the seed only take the same time."""
    gflops = {precision: matmul_gflops(precision) for precision in {cell.config.precision for cell in cells}}
    known: dict[tuple[str, str, str], float] = {}
    found = []
    for cell in cells:
        key = (cell.config.recipe, cell.method, cell.variant)
        if key not in known:
            alone = cell.config.model_copy(update={"workers": 1})
            known[key] = plan(alone, gflops[alone.precision]).seconds
        found.append(known[key])
    return found


def runs_at_once(cells: Sequence[Cell], asked: int | None, room: int | None = None) -> int:
    """Return how many runs go on at a time: as asked, or as many as have room (default: the cores)."""
    room = len(os.sched_getaffinity(0)) if room is None else room
    each = max((cell.config.workers for cell in cells), default=0)
    return min(asked or max(1, room // max(each, 1)), max(len(cells), 1))


def state_of(cell: Cell) -> State:
    """Look into a run's folder."""
    entries = {entry.name for entry in cell.folder.iterdir()} if cell.folder.is_dir() else set()
    if entries <= {".lock"} and not cell.folder.is_file():
        return "new"
    if "config.toml" not in entries or difference(cell):
        return "other"
    if _is_finished(cell.folder):
        return "finished"
    return "stopped"


def difference(cell: Cell) -> str:
    """Say how the configuration in a run's folder differs from the cell's, or nothing."""
    return differing(cell.config, cell.folder, ("machine",))


def _is_finished(folder: Path) -> bool:
    try:
        return isinstance(json.loads(text_of(folder / "summary.json")), dict)
    except (OSError, ValueError, RecursionError):
        return False


def _untested(cell: Cell, tests: _Retests) -> list[Retest]:
    return [test for test in tests.get(cell.folder, ()) if not _is_finished(test.folder)]


def _task(cell: Cell, state: State, at_once: int, place: Place, tests: _Retests) -> Task:
    """Return what a process is to do for a run: there are runs at a time before a run has several workers."""
    settings = dump(cell.config)
    if at_once > 1:
        share = place.workers // at_once if place.cluster else 1
        settings["workers"] = settings["workers"] or max(1, share)
    start: Start = "new"
    if state == "finished":
        start = "finished"
    elif state == "stopped" and any((cell.folder / "checkpoints").glob("round-*.ckpt")):
        start = "resume"
    return Task(settings, cell.folder, start, tuple(_untested(cell, tests)), place.cluster)


@dataclass
class _Active:
    """A run in another process."""

    cell: Cell
    process: BaseProcess
    problem: str | None = "its process died (killed, or out of memory). Run the same command again to go on"


def _run_all(planned: Sequence[tuple[Cell, Task]], at_once: int, watcher: Watcher) -> dict[Path, str]:
    waiting, problems = list(planned), dict[Path, str]()
    active: dict[Connection, _Active] = {}
    try:
        while waiting or active:
            while waiting and len(active) < at_once:
                connection, begun = _begin(*waiting.pop(0))
                active[connection] = begun
                watcher.began(begun.cell)
            for ready in wait(list(active)):
                assert isinstance(ready, Connection)
                if _listen(ready, active[ready], watcher):
                    continue
                ended = active.pop(ready)
                ended.process.join()
                watcher.ended(ended.cell, ended.problem)
                if ended.problem is not None:
                    problems[ended.cell.folder] = ended.problem
    finally:
        for left in active.values():
            left.process.terminate()
            left.process.join()
    return problems


def _begin(cell: Cell, task: Task) -> tuple[Connection, _Active]:
    """Start a run in a process forked from a server that has imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOAD))
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(task, theirs))
    process.start()
    theirs.close()
    return ours, _Active(cell, process)


def _listen(connection: Connection, active: _Active, watcher: Watcher) -> bool:
    """Take one message of a run; return whether more can come."""
    try:
        kind, content = connection.recv()
    except (EOFError, OSError):
        connection.close()
        return False
    if kind == "round":
        watcher.finished_round(active.cell, content)
    else:
        active.problem = content
    return True


def finished(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Path]]:
    """Return the folders of the finished runs by method and variant, in the order of the grid."""
    groups: dict[tuple[str, str], list[Path]] = {(cell.method, cell.variant): [] for cell in cells}
    for cell in cells:
        if state_of(cell) == "finished":
            groups[cell.method, cell.variant].append(cell.folder)
    return groups
