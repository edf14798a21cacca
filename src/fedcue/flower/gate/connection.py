"""Connections to the gate: ended when a head, or a request with its answer, takes too long."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedcue.flower.gate.rules import Limits

_LATER = 1.1
"""Times the limit of a request after which its connection is ended, whatever is still to be sent."""


class Connection(H11Protocol):
    """One connection, read by h11, which takes no liberties with what a request is."""

    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._head: asyncio.TimerHandle | None = None
        self._whole: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Watch the time from the first moment."""
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._cancel_head()
        self._cancel_whole()

    def data_received(self, data: bytes) -> None:
        """Read on, and watch the time as long as no head is complete."""
        super().data_received(data)
        self._watch_head()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._cancel_head()
            if self._whole is None:
                self._whole = self.loop.call_later(_LATER * self._limits.request_seconds, self._too_slow)
        elif self._head is None:
            self._head = self.loop.call_later(self._limits.head_seconds, self._too_slow)

    def on_response_complete(self) -> None:
        """Stop watching the time if all of the answer has left; one that nobody reads stays here."""
        if not self.transport.get_write_buffer_size():
            self._cancel_whole()
        super().on_response_complete()

    def _cancel_whole(self) -> None:
        if self._whole is not None:
            self._whole.cancel()
            self._whole = None

    def _cancel_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _too_slow(self) -> None:
        """End a connection on which no request began in time, or whose answer nobody reads."""
        self._head = self._whole = None
        self.transport.abort()
