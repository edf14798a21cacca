"""Masks: streams of words that hide a vector, and that cancel or can be taken away from a sum.

Two clients u < v agree on a stream; u adds it and v subtracts it, so that it is gone from the sum of
both. Besides, each client adds a stream of its own, which is taken away with shares of its seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedcue.secure.fixed_point import Words
from fedcue.secure.keys import KEY_BYTES, agree, derive

BLOCK_WORDS = 1 << 15
"""Words that are made at a time; 256 KiB stay in a core's cache."""

_ZEROS = bytes(8 * BLOCK_WORDS)


def add_stream(total: Words, key: bytes, subtract: bool = False) -> None:
    """Add the words of a key's ChaCha20 stream to ``total`` in place, or subtract them.

    Every key is for one stream only, so nonce and counter start at zero.
    """
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    words = np.empty(min(BLOCK_WORDS, len(total)), dtype="<u8")
    for start in range(0, len(total), BLOCK_WORDS):
        part = total[start : start + BLOCK_WORDS]
        stream.update_into(memoryview(_ZEROS)[: 8 * len(part)], words[: len(part)].data.cast("B"))
        if subtract:
            part -= words[: len(part)]
        else:
            part += words[: len(part)]


def self_key(seed: bytes, client: int, transcript: bytes) -> bytes:
    """Return the key of a client's own stream."""
    return derive(seed, transcript, b"self mask" + _bytes(client))


def commitment(seed: bytes, client: int, transcript: bytes) -> bytes:
    """Return what binds a client to its seed without telling it, so that wrong shares are noticed."""
    return derive(seed, transcript, b"self mask commitment" + _bytes(client))


def pair_key(secret: bytes, client: int, other: int, keys: Mapping[int, bytes], transcript: bytes) -> bytes:
    """Return the key of the stream that two clients share; ``secret`` is the first one's mask key."""
    low, high = sorted((client, other))
    names = _bytes(low) + mask_half(keys[low]) + _bytes(high) + mask_half(keys[high])
    return derive(agree(secret, mask_half(keys[other]), other), transcript, b"pairwise mask" + names)


def seal_key(
    secret: bytes, pair: tuple[int, int], other: int, keys: Mapping[int, bytes], transcript: bytes
) -> bytes:
    """Return the key under which shares travel from one of a pair of clients to the other.

    ``secret`` is the cipher key of one of them, ``other`` is not that one.
    """
    sender, receiver = pair
    names = _bytes(sender) + cipher_half(keys[sender]) + _bytes(receiver) + cipher_half(keys[receiver])
    return derive(agree(secret, cipher_half(keys[other]), other), transcript, b"sealed shares" + names)


def add_pair(total: Words, client: int, other: int, key: bytes, undo: bool = False) -> None:
    """Add what ``client`` adds for ``other`` (the lower one adds, the higher one subtracts), or undo it."""
    add_stream(total, key, subtract=(client > other) != undo)


def cipher_half(pair: bytes) -> bytes:
    """Return the public key for sealing out of a client's two public keys."""
    return pair[:KEY_BYTES]


def mask_half(pair: bytes) -> bytes:
    """Return the public key for masks out of a client's two public keys."""
    return pair[KEY_BYTES:]


def repeats(pairs: Iterable[bytes]) -> bool:
    """Tell whether a public key stands twice in the clients' pairs of keys."""
    halves = [half for pair in pairs for half in (cipher_half(pair), mask_half(pair))]
    return len(set(halves)) < len(halves)


def _bytes(client: int) -> bytes:
    return client.to_bytes(4)
