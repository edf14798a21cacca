"""Forked worker processes that cannot hang a run: each shows that it is alive and whom it works for.

A worker that stands still (stopped, swapped out) is replaced and its work done again, which changes no
bit; a client that does not come back from a hung disk is left out after ``client_timeout``, measured from
here; and a run that is told to stop does not wait for either.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from fedcue.errors import ClientError, FedcueError
from fedcue.machine import StopFlag, end_with_parent, shared_zeros

LOOK = 1.0
"""Seconds between two looks at the workers while a result is waited for."""
SILENT = 60
"""Looks without a sign of life after which a worker is taken for stopped."""
GRACE = 10
"""Looks that a worker has to end by itself, after ``client_timeout`` or when the run is told to stop."""
REPLACEMENTS = 3
"""How often stopped workers are replaced in one step of a run."""
WAITING = 3
"""Jobs per worker that are prepared ahead, so that no worker waits."""

PID, BEATS, VISITS, CLIENT, COUNT = range(5)
"""What a worker shows: who it is, that it is alive, its visits so far, its client, how many there are."""

Visit = tuple[int, int, int]
"""A visit that hung: the step of the run, the first client and the number of clients."""

_own_row: torch.Tensor | None = None
_step = 0
_hung: frozenset[Visit] = frozenset()
"""In a worker: its row of the board, the step it works for, and the visits that hung in it."""


class Workers:
    """Some processes forked from this one; ``client_timeout`` is in seconds."""

    def __init__(self, count: int, stop: StopFlag, client_timeout: float | None = None) -> None:
        self.count, self.stop, self.client_timeout = count, stop, client_timeout
        self._steps, self._replaced = 0, 0
        self._hung: set[Visit] = set()
        self._start()

    def map(self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield results in order; only a few jobs wait at a time, however many there are."""
        self._steps, self._replaced = self._steps + 1, 0
        waiting: deque[tuple[Future[Any], tuple[Any, ...]]] = deque()
        try:
            for job in jobs:
                call = (self._steps, function, *job)
                waiting.append((self._pool.submit(_work, *call), call))
                if len(waiting) > WAITING * self.count:
                    yield self._first(waiting)
            while waiting:
                yield self._first(waiting)
        except BrokenProcessPool as error:
            raise FedcueError(
                "A worker process died (killed, or out of memory). The finished rounds are safe: resume "
                "the run, perhaps with fewer workers=N or a smaller training.batch_size."
            ) from error
        finally:
            for future, _ in waiting:
                future.cancel()

    def close(self) -> None:
        """Kill all workers at once, stopped ones too, without waiting for their work."""
        processes = list((self._pool._processes or {}).values())
        for process in processes:
            process.kill()
        for process in processes:  # all of them, before the pool waits for one that waits for another
            process.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._board = shared_zeros([self.count, 5], torch.int64)
        self._looks = torch.zeros(self.count, 2, dtype=torch.int64)  # without a beat, within a visit
        self._seen, self._looks_since_stop = self._board.clone(), 0
        arguments = (os.getpid(), self._board, context.Value("i", 0), frozenset(self._hung))
        self._pool = ProcessPoolExecutor(self.count, context, _begin, arguments)

    def _first(self, waiting: deque[tuple[Future[Any], tuple[Any, ...]]]) -> Any:
        """Return the first result; look after the workers while it is not there."""
        while not wait([waiting[0][0]], timeout=LOOK).done:
            if self._look():
                self.close()
                self._start()
                again = [(self._pool.submit(_work, *call), call) for _, call in waiting]
                waiting.clear()
                waiting.extend(again)
        return waiting.popleft()[0].result()

    def _look(self) -> bool:
        """Tell whether the workers must be replaced; raise if the run is to stop and they do not.

        Looks are counted, not seconds: while the whole run is suspended nobody is late.
        """
        now = self._board.clone()
        same = now[:, [BEATS, VISITS]] == self._seen[:, [BEATS, VISITS]]
        self._seen, self._looks = now, (self._looks + 1) * same
        if self.stop.is_set:
            self._looks_since_stop += 1
            if self._looks_since_stop > GRACE:
                self.stop.check()
        return self._overdue(now) or self._silent(now)

    def _overdue(self, now: torch.Tensor) -> bool:
        """Note the visits that take longer than they may and do not end by themselves."""
        if self.client_timeout is None:
            return False
        late = (self._looks[:, 1] > self.client_timeout / LOOK + GRACE) & (now[:, COUNT] > 0)
        self._hung.update((self._steps, int(row[CLIENT]), int(row[COUNT])) for row in now[late])
        return bool(late.any())

    def _silent(self, now: torch.Tensor) -> bool:
        silent = now[self._looks[:, 0] > SILENT][:, PID].tolist()
        self._replaced += bool(silent)
        if self._replaced > REPLACEMENTS:
            raise FedcueError(
                f"Worker process {silent[0]} stands still, as {REPLACEMENTS} before it did (stopped, swapped "
                "out, or waiting for a disk). The finished rounds are safe: mend that, then resume the run, "
                "perhaps with fewer workers=N."
            )
        return bool(silent)


def begin_visit(clients: Sequence[int]) -> None:
    """In a worker: show whom it works for; a visit that hung in this step is not tried again."""
    if _own_row is None:
        return
    _own_row[CLIENT], _own_row[COUNT] = clients[0], len(clients)
    _own_row[VISITS] += 1
    if (_step, clients[0], len(clients)) in _hung:
        raise ClientError("it took longer than client_timeout and did not stop by itself")


def _begin(parent: int, board: torch.Tensor, started: Any, hung: frozenset[Visit]) -> None:
    """In a new worker: take a row of the board, show signs of life, leave no orphan behind."""
    global _own_row, _hung
    end_with_parent()
    _hung = hung
    with started.get_lock():
        _own_row = row = board[started.value]
        started.value += 1
    row[PID] = os.getpid()

    def live() -> None:
        while os.getppid() == parent:
            row[BEATS] += 1
            time.sleep(LOOK / 2)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=live, daemon=True).start()


def _work(step: int, function: Callable[..., Any], *job: Any) -> Any:
    global _step
    _step = step
    try:
        return function(*job)
    finally:
        if _own_row is not None:
            _own_row[COUNT] = 0
