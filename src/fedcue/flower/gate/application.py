"""The gate itself: it sends allowed requests to the SuperLink as new ones, and refuses the rest."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy

import h11
import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from fedcue.errors import printable
from fedcue.flower.gate.rules import ADDED, PASSED, PATHS, RETURNED, Limits, Rate, Refusal, peer, refusal

log = logging.getLogger(__name__)


class Gate:
    """An ASGI application between nodes and the SuperLink."""

    def __init__(self, superlink: httpx.AsyncClient, limits: Limits) -> None:
        self.superlink, self.limits = superlink, limits
        superlink.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
        self._rate, self._complaints = Rate(limits), Complaints()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request within its time."""
        started = Started(send)
        try:
            async with asyncio.timeout(self.limits.request_seconds):
                await self._answer(Request(scope, receive), started)
        except TimeoutError:
            if not started.yes:
                await refused(Refusal(408, "too slow"))(scope, receive, send)
        except (ClientDisconnect, httpx.TransportError, h11.LocalProtocolError):
            return  # an answer that cannot be begun or completed: the server ends the connection

    async def _answer(self, request: Request, send: Send) -> None:
        why = refusal(request.scope, self.limits)
        if not self._rate.admits(peer(request.scope["client"])):
            why = Refusal(503, "too many requests")
        if why is not None:
            self._complaints.about(request.scope, why)
            await refused(why)(request.scope, request.receive, send)
            return
        asked = await self._ask(request)
        if isinstance(asked, Refusal):
            await refused(asked)(request.scope, request.receive, send)
            return
        try:
            await _passed_on(asked)(request.scope, request.receive, send)
        finally:
            await asked.aclose()

    async def _ask(self, request: Request) -> httpx.Response | Refusal:
        """Ask the SuperLink. The path is the gate's own text, and so is where the body ends."""
        passed = [(name, value) for name, value in request.headers.raw if name in PASSED]
        length = (b"content-length", request.headers["content-length"].encode())
        asked = self.superlink.build_request(
            "POST",
            PATHS[request.scope["raw_path"]],
            headers=[*passed, length, *ADDED],
            content=_body(request),
        )
        try:
            return await self.superlink.send(asked, stream=True)
        except httpx.TimeoutException:
            return Refusal(504, "the SuperLink does not answer")
        except httpx.TransportError:
            return Refusal(502, "the SuperLink cannot be reached")


def _passed_on(answer: httpx.Response) -> Response:
    """Return the response that a node gets, made from the SuperLink's answer."""
    response = StreamingResponse(answer.aiter_raw(), answer.status_code)
    headers = [(name.lower(), value) for name, value in answer.headers.raw]
    response.raw_headers = [header for header in headers if header[0] in RETURNED]
    return response


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for part in request.stream():
        if part:
            yield part


def refused(why: Refusal) -> Response:
    """Return the answer to a refused request; the connection ends with it, whatever else was sent."""
    return PlainTextResponse(f"refused: {why.reason}\n", why.status, headers={"connection": "close"})


@dataclass
class Started:
    """Passes on what is sent and remembers that something was."""

    send: Send
    yes: bool = False

    async def __call__(self, message: Message) -> None:
        """Send."""
        self.yes = True
        await self.send(message)


class Seldom(logging.Filter):
    """Lets one message a second through: strangers can make the server below the gate complain, too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._last = clock, float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a second has passed since the last message."""
        now = self._clock()
        if now - self._last < 1.0:
            return False
        self._last = now
        return True


@dataclass
class Complaints:
    """Tells the log what was refused, one line a second at most: a stranger must not fill the disk."""

    clock: Callable[[], float] = time.monotonic
    silent: int = 0
    last: float = float("-inf")

    def about(self, scope: Scope, why: Refusal) -> None:
        """Report a refusal, or count it."""
        now = self.clock()
        if now - self.last < 1.0:
            self.silent += 1
            return
        path = printable(scope["raw_path"][:100].decode("latin-1"))
        more = f" (and {self.silent} more)" if self.silent else ""
        method = printable(scope["method"][:20])
        log.warning("refused %s %s of %s: %s%s", method, path, peer(scope["client"]), why.reason, more)
        self.silent, self.last = 0, now
