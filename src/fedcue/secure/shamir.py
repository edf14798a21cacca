"""Shamir's secret sharing of 32 bytes: any ``threshold`` shares give the secret, fewer give nothing.

The secret is the constant term of a random polynomial of degree ``threshold - 1`` over the field of
2^256 + 297 elements (a prime just large enough for 32 bytes). A share is its value at a client's point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from fedcue.secure.refusals import SecureSumError, SharesDoNotFit

PRIME = 2**256 + 297
_SECRET_BYTES = 32
SHARE_BYTES = 33

Random = Callable[[int], bytes]
"""Returns that many random bytes."""


def split(secret: bytes, threshold: int, clients: Iterable[int], random: Random) -> dict[int, bytes]:
    """Return a share of ``secret`` for every client."""
    if len(secret) != _SECRET_BYTES:
        raise SecureSumError(f"A secret of {len(secret)} bytes was given. Allowed: {_SECRET_BYTES} bytes.")
    coefficients = [_field_element(random) for _ in range(threshold - 1)] + [int.from_bytes(secret)]
    return {client: _value(coefficients, _point(client)).to_bytes(SHARE_BYTES) for client in clients}


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of which clients hold these shares; the ``threshold`` lowest clients are used."""
    if len(shares) < threshold:
        raise SecureSumError(f"{len(shares)} shares were given and {threshold} are needed.")
    clients = tuple(sorted(shares)[:threshold])
    weights = _weights_at_zero(clients)
    values = [_checked(shares[client], client) for client in clients]
    secret = sum(weight * value for weight, value in zip(weights, values, strict=True)) % PRIME
    if secret >= 2 ** (8 * _SECRET_BYTES):
        raise SharesDoNotFit(f"The shares of clients {clients} do not belong to one secret.")
    return secret.to_bytes(_SECRET_BYTES)


def _field_element(random: Random) -> int:
    return int.from_bytes(random(48)) % PRIME  # 128 bits more than the prime has: the bias is below 2^-127


def _value(coefficients: list[int], point: int) -> int:
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % PRIME
    return value


def _point(client: int) -> int:
    return client + 1  # the value at 0 is the secret itself


def _checked(share: bytes, client: int) -> int:
    value = int.from_bytes(share)
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise SharesDoNotFit(f"The share of client {client} is no number of the field.")
    return value


@lru_cache(maxsize=64)
def _weights_at_zero(clients: tuple[int, ...]) -> tuple[int, ...]:
    points = [_point(client) for client in clients]
    weights = []
    for point in points:
        top, bottom = 1, 1
        for other in points:
            if other != point:
                top = top * other % PRIME
                bottom = bottom * (other - point) % PRIME
        weights.append(top * pow(bottom, -1, PRIME) % PRIME)
    return tuple(weights)
