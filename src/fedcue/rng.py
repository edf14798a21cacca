"""Named independent random streams: the same seed and names give the same numbers everywhere.

No function of the library touches a global generator. A stream is named by what it is for, so that
changing one thing (the method, say) never changes another (which clients are sampled).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _sequence(seed: int, names: tuple[str | int, ...]) -> np.random.SeedSequence:
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return np.random.SeedSequence(np.frombuffer(digest, dtype=np.uint32).tolist())


def rng(seed: int, *names: str | int) -> np.random.Generator:
    """Return the numpy generator of the stream ``names`` under ``seed``."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, names)))


def torch_rng(seed: int, *names: str | int) -> torch.Generator:
    """Return the torch (CPU) generator of the stream ``names`` under ``seed``."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(int(_sequence(seed, names).generate_state(2, np.uint32)[0]))
    return generator
