"""Where clients work: in this process, or in forked processes of one thread each.

The frozen weights, pixels and cached values are in memory shared by the fork; only the named
tensors that a real network would carry cross between processes, as safetensors bytes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from multiprocessing import get_context
from types import TracebackType
from typing import Any

import numpy as np
import torch

from fedcue.errors import ClientError, FedcueError
from fedcue.federate.engine import Failure, Insight
from fedcue.federate.evaluation import Evaluation, analyse, client_groups
from fedcue.federate.federation import Federation
from fedcue.federate.site import Prediction
from fedcue.types import ClientMemory, Download, ServerState, Update, pack, unpack

_federation: Federation | None = None

WAITING = 3
"""Jobs per worker that are prepared ahead, so that no worker waits."""

TestJob = tuple[Sequence[int], Download, ClientMemory, bool]


class Executor:
    """Runs the clients' work in order; ``workers`` is the number of processes (1: this one)."""

    def __init__(self, federation: Federation, workers: int) -> None:
        global _federation
        torch.set_num_threads(1)
        self.federation, self.roster = federation, federation.roster
        on_cpu = federation.model.device.type == "cpu"  # a GPU cannot be shared with forked processes
        self.workers = (workers or len(os.sched_getaffinity(0))) if on_cpu else 1
        _ = federation.cache  # allocated before the fork, so that all processes share it
        _federation = federation
        self._pool: ProcessPoolExecutor | None = None
        if self.workers > 1:
            context = get_context("fork")
            self._pool = ProcessPoolExecutor(self.workers, context, _end_with_parent, (os.getpid(),))

    def __enter__(self) -> Executor:
        """Return the executor; leaving the block ends its processes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def warm_up(self, clients: Iterable[int]) -> Iterator[Update | Failure]:
        """Yield the clients' warm-up replies, if the method has any."""
        for reply in self._map(_warm_up, ((client,) for client in clients)):
            if isinstance(reply, Failure):
                yield reply
            elif reply is not None:
                yield _unpack_update(reply)

    def train(
        self, jobs: Iterable[tuple[Download, ClientMemory]]
    ) -> Iterator[tuple[Update, ClientMemory] | Failure]:
        """Train clients; yield updates and memories, or failures, in the order of ``jobs``."""
        packed = ((_pack_download(download), pack(memory.tensors)) for download, memory in jobs)
        for outcome in self._map(_train, packed):
            if isinstance(outcome, Failure):
                yield outcome
            else:
                update, memory = outcome
                yield _unpack_update(update), ClientMemory(unpack(memory))

    def test(self, jobs: Iterable[TestJob]) -> Iterator[Prediction | Failure]:
        """Test groups of clients; yield predictions in the order of ``jobs``, and who failed."""
        packed = ((c, _pack_download(d), pack(memory.tensors), final) for c, d, memory, final in jobs)
        return chain.from_iterable(self._map(_test, packed))

    def evaluate(self, state: ServerState, memories: Mapping[int, ClientMemory], final: bool) -> Evaluation:
        """Test the listed clients that the method can serve."""
        method, seed = self.federation.method, self.federation.config.seed
        jobs = (
            (group, method.download(state, group[0], seed), memories.get(group[0], ClientMemory()), final)
            for group in client_groups(self.federation)
        )
        outcomes = list(self.test(jobs))
        missing = {outcome.client: outcome.reason for outcome in outcomes if isinstance(outcome, Failure)}
        parts = [outcome for outcome in outcomes if isinstance(outcome, Prediction)]
        if not parts:
            nothing = np.zeros(len(self.roster), dtype=np.int64)
            return Evaluation(self.roster, nothing, nothing, missing=missing).checked()
        together = [np.concatenate([getattr(p, name) for p in parts]) for name in Prediction.__annotations__]
        return Evaluation.of(self.roster, Prediction(*together), missing).checked()

    def insight(
        self, state: ServerState, memories: Mapping[int, ClientMemory], evaluation: Evaluation
    ) -> Insight:
        """Return what a simulation knows of its clients at the end."""
        federation = self.federation
        return Insight(
            class_priors={c: federation.client(c).class_priors for c in self.roster.listed.tolist()},
            memories=memories,
            analysis=analyse(federation, state, memories, evaluation),
            facts={"frozen_cache": federation.cache.level, "bad_images": len(federation.pixels.bad)},
        )

    def _map(self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield results in order; only a few jobs wait at a time, however many there are."""
        if self._pool is None:
            yield from (function(*job) for job in jobs)
            return
        waiting: deque[Future[Any]] = deque()
        try:
            for job in jobs:
                waiting.append(self._pool.submit(function, *job))
                if len(waiting) > WAITING * self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise FedcueError(
                "A worker process died (killed, or out of memory). The finished rounds are safe: resume "
                "the run, perhaps with fewer workers=N or a smaller training.batch_size."
            ) from error
        finally:
            for job_left in waiting:
                job_left.cancel()


def _end_with_parent(parent: int) -> None:
    """In a worker: leave no orphan behind when the parent is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


_PackedDownload = tuple[int, int, int, bytes]
_PackedUpdate = tuple[int, int, bytes, float | None]


def _pack_download(download: Download) -> _PackedDownload:
    return download.client, download.round, download.seed, pack(download.tensors)


def _unpack_download(packed: _PackedDownload) -> Download:
    client, round_, seed, tensors = packed
    return Download(client, round_, seed, unpack(tensors))


def _pack_update(update: Update) -> _PackedUpdate:
    return update.client, update.samples, pack(update.tensors), update.loss


def _unpack_update(packed: _PackedUpdate) -> Update:
    client, samples, tensors, loss = packed
    return Update(client, samples, unpack(tensors), loss)


def _here() -> Federation:
    assert _federation is not None, "work is done in processes forked from the one that made the federation"
    return _federation


def _warm_up(client: int) -> _PackedUpdate | Failure | None:
    try:
        reply = _here().warm_up(client)
    except ClientError as error:
        return Failure(client, str(error))
    return None if reply is None else _pack_update(reply)


def _train(download: _PackedDownload, memory: bytes) -> tuple[_PackedUpdate, bytes] | Failure:
    try:
        update, memory_after = _here().train(_unpack_download(download), ClientMemory(unpack(memory)))
    except ClientError as error:
        return Failure(download[0], str(error))
    return _pack_update(update), pack(memory_after.tensors)


def _test(
    clients: Sequence[int], download: _PackedDownload, memory: bytes, final: bool
) -> list[Prediction | Failure]:
    """Test clients together or, if one of them fails, one by one."""
    try:
        return [_here().test(clients, _unpack_download(download), ClientMemory(unpack(memory)), final)]
    except ClientError as error:
        if len(clients) == 1:
            return [Failure(clients[0], str(error))]
    return [outcome for client in clients for outcome in _test([client], download, memory, final)]
