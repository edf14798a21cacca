"""Work in forked processes: what this one has imported need not be imported again."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
FAILED = 3
"""What a child exits with when the work itself raises: a mistake of ours, not an answer."""


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
            pid, status = os.wait()
            if pid not in running:
                continue
            item, own = running.pop(pid)
            code, answer = os.waitstatus_to_exitcode(status), (own / "result.json").read_text()
            log = (own / "log.txt").read_text(errors="replace")
            _clean(pid, own)
            if code == FAILED:
                raise RuntimeError(f"The work on {item} failed:\n{log}")
            yield item, None if code else json.loads(answer)
    finally:
        for pid, (_, own) in running.items():
            _clean(pid, own)


def _fork(work: Callable[[Any, Path], Any], item: Any, own: Path, limit: float) -> int:
    (own / "result.json").touch()
    log = os.open(own / "log.txt", os.O_WRONLY | os.O_CREAT)
    pid, code = os.fork(), FAILED
    if pid:
        os.close(log)
        return pid
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.dump_traceback_later(limit, exit=True)
        (own / "result.json").write_text(json.dumps(work(item, own)))
        code = 0
    except BaseException:
        os.write(log, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _clean(pid: int, own: Path) -> None:
    """End what a child left running and remove its folder."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(own, ignore_errors=True)
