"""X25519, HKDF-SHA256 and ChaCha20 in plain Python, written from the RFCs to check the real ones."""

from __future__ import annotations

import hashlib
import hmac
import struct

FIELD = 2**255 - 19


def x25519(secret: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5: the Montgomery ladder."""
    scalar = int.from_bytes(secret, "little")
    scalar = (scalar & ((1 << 254) - 8)) | (1 << 254)
    u = int.from_bytes(point, "little") & ((1 << 255) - 1)
    low, high = (1, 0), (u, 1)
    for bit in reversed(range(255)):
        if scalar >> bit & 1:
            high, low = _double_and_add(high, low, u)
        else:
            low, high = _double_and_add(low, high, u)
    return (low[0] * pow(low[1], FIELD - 2, FIELD) % FIELD).to_bytes(32, "little")


def _double_and_add(doubled, added, difference):
    (x2, z2), (x3, z3) = doubled, added
    plus, minus = (x2 + z2) ** 2 % FIELD, (x2 - z2) ** 2 % FIELD
    spread = plus - minus
    cross, other = (x3 - z3) * (x2 + z2), (x3 + z3) * (x2 - z2)
    double = (plus * minus % FIELD, spread * (plus + 121665 * spread) % FIELD)
    return double, ((cross + other) ** 2 % FIELD, difference * (cross - other) ** 2 % FIELD)


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = 32) -> bytes:
    """RFC 5869: extract, then expand."""
    key = hmac.digest(salt, secret, "sha256")
    block, out, count = b"", b"", 0
    while len(out) < length:
        count += 1
        block = hmac.digest(key, block + info + bytes([count]), "sha256")
        out += block
    return out[:length]


def chacha20_words(key: bytes, words: int) -> list[int]:
    """RFC 8439, section 2.3: the key stream from counter and nonce zero, as 64-bit words."""
    blocks = -(-words // 8)
    stream = b"".join(_block(key, counter) for counter in range(blocks))
    return list(struct.unpack(f"<{8 * blocks}Q", stream))[:words]


def _block(key: bytes, counter: int) -> bytes:
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
    state = list(start)
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for _ in range(10):
        for a, b, c, d in columns + diagonals:
            for to, other, mixed, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                state[to] = (state[to] + state[other]) & 0xFFFFFFFF
                value = state[mixed] ^ state[to]
                state[mixed] = (value << turn | value >> (32 - turn)) & 0xFFFFFFFF
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, start, strict=True)))


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
