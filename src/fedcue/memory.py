"""Memory that a process shares with those forked from it, not limited by ``/dev/shm``."""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


def shared_zeros(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, folder: Path | None = None
) -> Tensor:
    """Return zeros that forked processes can write for each other, in memory or in a file.

    Pages take up room only once they are written. The file has no name and goes with the processes.
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
