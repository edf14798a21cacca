"""Where clients work: in this process, or in forked processes of one thread each.

The frozen weights, pixels and cached values are in memory shared by the fork; only the named
tensors that a real network would carry cross between processes, as safetensors bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType

import torch

from fedcue.errors import FedcueError
from fedcue.federate.federation import Federation, Prediction
from fedcue.types import ClientMemory, Download, Update, pack, unpack

_federation: Federation | None = None

TestJob = tuple[Sequence[int], Download, ClientMemory, bool]


class Executor:
    """Runs the clients' work in order; ``workers`` is the number of processes (1: this one)."""

    def __init__(self, federation: Federation, workers: int) -> None:
        global _federation
        torch.set_num_threads(1)
        self.federation = federation
        self.workers = workers or len(os.sched_getaffinity(0))
        _ = federation.cache  # allocated before the fork, so that all processes share it
        _federation = federation
        fork = get_context("fork")
        self._pool = ProcessPoolExecutor(self.workers, mp_context=fork) if self.workers > 1 else None

    def __enter__(self) -> Executor:
        """Return the executor; leaving the block ends its processes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def warm_up(self, clients: Iterable[int]) -> Iterator[Update]:
        """Yield the clients' warm-up replies, if the method has any."""
        if self._pool is None:
            yield from (reply for c in clients if (reply := self.federation.warm_up(c)) is not None)
            return
        for packed in self._map(_warm_up, [(client,) for client in clients]):
            if packed is not None:
                yield _unpack_update(packed)

    def train(
        self, jobs: Sequence[tuple[Download, ClientMemory]]
    ) -> Iterator[tuple[Update, ClientMemory]]:
        """Train clients; yield updates and memories in the order of ``jobs``."""
        if self._pool is None:
            yield from (self.federation.train(download, memory) for download, memory in jobs)
            return
        packed_jobs = [(_pack_download(download), pack(memory.tensors)) for download, memory in jobs]
        for update, memory in self._map(_train, packed_jobs):
            yield _unpack_update(update), ClientMemory(unpack(memory))

    def test(self, jobs: Sequence[TestJob]) -> Iterator[Prediction]:
        """Test groups of clients; yield predictions in the order of ``jobs``."""
        if self._pool is None:
            yield from (self.federation.test(*job) for job in jobs)
            return
        packed_jobs = [(c, _pack_download(d), pack(memory.tensors), final) for c, d, memory, final in jobs]
        yield from self._map(_test, packed_jobs)

    def _map(self, function, jobs):  # type: ignore[no-untyped-def]
        assert self._pool is not None
        try:
            yield from self._pool.map(function, *zip(*jobs, strict=True))
        except BrokenProcessPool as error:
            raise FedcueError(
                "A worker process died (killed, or out of memory). Nothing of the finished rounds is lost; "
                "run with fewer workers=N or a smaller training.batch_size."
            ) from error


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


def _warm_up(client: int) -> _PackedUpdate | None:
    reply = _here().warm_up(client)
    return None if reply is None else _pack_update(reply)


def _train(download: _PackedDownload, memory: bytes) -> tuple[_PackedUpdate, bytes]:
    update, memory_after = _here().train(_unpack_download(download), ClientMemory(unpack(memory)))
    return _pack_update(update), pack(memory_after.tensors)


def _test(clients: Sequence[int], download: _PackedDownload, memory: bytes, final: bool) -> Prediction:
    return _here().test(clients, _unpack_download(download), ClientMemory(unpack(memory)), final)
