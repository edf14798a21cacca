"""Work in forked processes: what this one has imported need not be imported again."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")


def in_children(
    work: Callable[[Item, Path], Any], items: Iterable[Item], folder: Path, jobs: int, limit: float
) -> Iterator[tuple[Item, Any]]:
    """Yield each item with its result from a process and a folder of its own, None if it died or took too long."""
    waiting, running = list(items)[::-1], dict[int, tuple[Item, Path]]()
    try:
        while waiting or running:
            if waiting and len(running) < jobs:
                item, own = waiting.pop(), folder / f"work-{time.monotonic_ns()}"
                own.mkdir()
                running[_fork(work, item, own, limit)] = (item, own)
                continue
            pid, _ = os.wait()
            if pid not in running:
                continue
            item, own = running.pop(pid)
            answer = own / "result.json"
            result = json.loads(answer.read_text()) if answer.exists() else None
            _clean(pid, own)
            yield item, result
    finally:
        for pid, (_, own) in running.items():
            _clean(pid, own)


def _fork(work: Callable[[Any, Path], Any], item: Any, own: Path, limit: float) -> int:
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        log = os.open(own / "log.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.dump_traceback_later(limit, exit=True)
        result = json.dumps(work(item, own))
        (own / "unfinished.json").write_text(result)
        (own / "unfinished.json").rename(own / "result.json")
    finally:
        os._exit(0)


def _clean(pid: int, own: Path) -> None:
    """End what a child left running and remove its folder."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(own, ignore_errors=True)
