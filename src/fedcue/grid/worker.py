"""One run of a grid in a process of its own: it sends its rounds and how it ended."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from fedcue.after.retest import retest
from fedcue.clients.roster import Roster
from fedcue.config.layers import resolve
from fedcue.config.recipes import import_paths
from fedcue.errors import FedcueError, Interrupted
from fedcue.rounds.loop import run

Start = Literal["new", "resume", "finished"]
"""How a run begins: from nothing, where it stopped, or not at all."""


@dataclass(frozen=True)
class Retest:
    """A test of the finished run under other settings, and where its result goes."""

    changes: tuple[str, ...]
    folder: Path


@dataclass(frozen=True)
class Task:
    """What a process is to do: plain settings, where, from where on, and what to test afterwards."""

    settings: Mapping[str, Any]
    folder: Path
    start: Start
    tests: tuple[Retest, ...] = ()
    cluster: str | None = None
    """Address of the Ray cluster that all runs share."""


def work(task: Task, connection: Connection) -> None:
    """Do one run and its tests in this process and send how it went."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if task.cluster is not None:
        os.environ["RAY_ADDRESS"] = task.cluster
    log = Path(f"{task.folder}.error.txt")
    log.unlink(missing_ok=True)
    try:
        _do(task, connection)
        connection.send(("end", None))
    except FedcueError as error:
        connection.send(("end", str(error)))
    except (KeyboardInterrupt, Interrupted, BrokenPipeError):
        sys.exit(1)
    except Exception as error:
        log.write_text(traceback.format_exc(), encoding="utf-8")
        connection.send(("end", f"{type(error).__name__}: {error} (details in {log})"))


def _do(task: Task, connection: Connection) -> None:
    if task.start != "finished":
        config = resolve(task.settings, name=task.settings["recipe"])
        again = task.start == "resume"
        run(config, task.folder, observer=_Sender(connection), resume=again, overwrite=not again)
    for test in task.tests:
        asked = import_paths(task.settings)
        retest(task.folder, test.changes, test.folder, overwrite=True, trusted=asked, fetch=True)


class _Sender:
    """Watches a run in its own process; stops it when nobody listens any more."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def started(self, roster: Roster, folder: Path) -> None:
        """Do nothing."""

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """Do nothing."""

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Send a round's metrics."""
        self.connection.send(("round", dict(record)))
