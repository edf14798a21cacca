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
    from numpy.typing import NDArray

_TWISTER_WORDS = 624
"""Words of 32 bits in the state of torch's generator, a Mersenne Twister."""


def rng(seed: int, *names: str | int) -> np.random.Generator:
    """Return the numpy generator of the stream ``names`` under ``seed``."""
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    sequence = np.random.SeedSequence(np.frombuffer(digest, dtype=np.uint32).tolist())
    return np.random.Generator(np.random.PCG64(sequence))


def torch_rng(seed: int, *names: str | int) -> torch.Generator:
    """Return the torch (CPU) generator of the stream ``names`` under ``seed``.

    The whole state is set, because ``manual_seed`` uses 32 bits of its seed: among a hundred thousand
    streams some would be the same.
    """
    import torch

    generator = torch.Generator()
    state = generator.get_state()
    # As 64-bit numbers: the seed, two flags, the position, and a word of the Mersenne Twister in each of 624.
    state.numpy().view(np.uint64)[3 : 3 + _TWISTER_WORDS] = _words(seed, names, _TWISTER_WORDS)
    generator.set_state(state)
    return generator


def _words(seed: int, names: tuple[str | int, ...], count: int) -> NDArray[np.uint32]:
    """Return the first words of the endless hash (SHAKE256) of a stream's names."""
    return np.frombuffer(hashlib.shake_256(repr((seed, *names)).encode()).digest(4 * count), "<u4")
