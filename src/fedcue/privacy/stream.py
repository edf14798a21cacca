"""Where the noise of privacy comes from: the keystream of a cipher under a key of 256 bits.

A deployment takes the key from the operating system and keeps it nowhere, so that nobody can draw
the noise again. A simulation derives it from its seed and the names of the stream, so that a run
can be repeated: who knows the seed can take such noise away.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcue.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY_BYTES = 32
"""Length of a key: 256 bits."""

LONGEST = 2**38
"""Bytes of one stream at most: the counter of ChaCha20 has 2^32 blocks of 64 bytes."""


class NoiseStream:
    """Uniform random words: the keystream of ChaCha20 under one key, read once from its start."""

    def __init__(self, key: bytes, *, repeatable: bool) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"The key has {len(key)} bytes. ChaCha20 needs {KEY_BYTES}.")
        ciphers = _primitives("ciphers")
        # Every key serves one stream, so that all of them may have the same nonce.
        self._cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), None).encryptor()
        self._process = os.getpid()
        self.repeatable = repeatable
        """Whether the seed of a simulation gives these words again."""
        self.drawn = 0
        """Bytes of the keystream used so far."""

    @classmethod
    def secret(cls, *names: str | int) -> NoiseStream:
        """Return a stream under a new key of the operating system, whatever the names."""
        return cls(os.urandom(KEY_BYTES), repeatable=False)

    @classmethod
    def simulated(cls, seed: int, *names: str | int) -> NoiseStream:
        """Return the stream ``names`` under ``seed``, which is the same in every run."""
        return cls(simulated_key(seed, *names), repeatable=True)

    def uniform_words(self, count: int) -> NDArray[np.uint64]:
        """Return the next ``count`` words, uniform over all values of 64 bits."""
        if os.getpid() != self._process:
            raise RuntimeError("A stream of noise was copied into another process. Make one in each.")
        size = 8 * count
        if self.drawn + size > LONGEST:
            raise RuntimeError(f"A stream of noise ends after {LONGEST} bytes. Make another.")
        self.drawn += size
        return np.frombuffer(self._cipher.update(bytes(size)), "<u8")

    def uniform_floats(self, count: int) -> NDArray[np.float64]:
        """Return the next ``count`` numbers, uniform on the 2^53 steps of [0, 1)."""
        return (self.uniform_words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def simulated_key(seed: int, *names: str | int) -> bytes:
    """Return the key of the simulated stream ``names`` under ``seed``, by HKDF with SHA-256."""
    # repr tells 1 from "1" and ("a", "b") from ("a, b",): no two lists of names are written alike.
    key: bytes = (
        _primitives("kdf.hkdf")
        .HKDF(
            _primitives("hashes").SHA256(),
            KEY_BYTES,
            salt=b"fedcue simulated noise",
            info=repr(names).encode(),
        )
        .derive(repr(seed).encode())
    )
    return key


def _primitives(name: str) -> Any:
    try:
        return importlib.import_module(f"cryptography.hazmat.primitives.{name}")
    except ImportError as error:
        raise ConfigError(
            "Noise for privacy needs the package cryptography, which is not installed. "
            "Give pip install 'fedcue[privacy]', or privacy=none."
        ) from error
