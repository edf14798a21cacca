"""What a process has of the machine: shared memory, threads, signals, peak memory, the network."""

from __future__ import annotations

import ctypes
import math
import mmap
import multiprocessing
import re
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from fedcue.errors import Interrupted


def shared_zeros(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, folder: Path | None = None
) -> Tensor:
    """Return zeros that forked processes can write for each other, in memory or in a file.

    Not limited by ``/dev/shm``, which has 64 MB in a container. Pages take up room only once they are
    written. The file has no name and goes with the processes.
    """
    size = max(1, math.prod(shape) * dtype.itemsize)
    if folder is None:
        buffer = mmap.mmap(-1, size)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            buffer = mmap.mmap(file.fileno(), size)
    count = math.prod(shape)
    return torch.frombuffer(buffer, dtype=dtype, count=count).view(*shape) if count else torch.empty(*shape)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside the block, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


PR_SET_PDEATHSIG = 1
"""Linux: the signal that a process gets when its parent dies."""


def end_with_parent() -> None:
    """Let the kernel end this process with its parent, even if it is stopped (where there is Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


_network = ContextVar("network", default=True)


@contextmanager
def network(allowed: bool) -> Iterator[None]:
    """Say for the block whether what it names may be fetched from the network."""
    before = _network.set(allowed)
    try:
        yield
    finally:
        _network.reset(before)


def hub_failures() -> tuple[type[Exception], ...]:
    """Return what the hub's client raises where the network, the hub or a disk fails.

    Errors of its HTTP client come through, whichever that is: a connection refused or broken off.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    return (OSError, *HfHubHTTPError.__bases__, HFValidationError)


def network_allowed() -> bool:
    """Tell whether something may be fetched: always, but where only a folder asks for it."""
    return _network.get()


def peak_memory_mb() -> float:
    """Return the peak memory of this process and of its largest living worker, in MiB."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    workers = [_peak_of(worker.pid) for worker in multiprocessing.active_children()]
    return (own + max(workers, default=0)) / 1024


def _peak_of(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmHWM:\s*(\d+)", status.read_text()) if status.is_file() else None
    return int(found[1]) if found else 0


class StopFlag:
    """Zero until a signal came, then its number; lives in memory shared with worker processes."""

    def __init__(self) -> None:
        self._number = shared_zeros([1], torch.int32).numpy()  # read without an operator of torch

    @property
    def is_set(self) -> bool:
        """Whether a signal came."""
        return bool(self._number[0])

    def check(self) -> None:
        """Raise ``Interrupted`` if a signal came; called between batches."""
        if self._number[0]:
            raise Interrupted(int(self._number[0]))

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Set the flag on the first SIGINT or SIGTERM; a second one acts as usual."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def set_flag(number: int, frame: FrameType | None) -> None:
            self._number[0] = number
            for other, handler in before.items():
                signal.signal(other, handler)

        for number in before:
            signal.signal(number, set_flag)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
