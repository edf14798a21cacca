"""The address outside: it takes no more connections than are allowed, counted before they shake hands."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from fedcue.flower.gate.rules import Limits, peer


class Outside(socket.socket):
    """A listening socket that ends a connection beyond the limits as soon as it is there."""

    def __init__(self, family: int, limits: Limits) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._limits = limits
        self._counts: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection, or say that it was ended."""
        accepted, address = super().accept()
        who = peer(address[:2])
        limits = self._limits
        if self._counts.total() >= limits.connections or self._counts[who] >= limits.connections_per_address:
            accepted.close()
            raise ConnectionAbortedError("too many connections")
        self._counts[who] += 1
        return _Counted(accepted, partial(self._forget, who)), address

    def _forget(self, who: str) -> None:
        self._counts[who] -= 1
        if not self._counts[who]:
            del self._counts[who]


class _Counted(socket.socket):
    """A connection that tells when it is closed."""

    def __init__(self, accepted: socket.socket, closed: Callable[[], None]) -> None:
        super().__init__(fileno=accepted.detach())
        self._tell: Callable[[], None] | None = closed

    def close(self) -> None:
        """Close the connection, and tell so once."""
        super().close()
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()
