"""Starting both: the SuperLink, which listens on loopback only, and the gate before it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import uvicorn

from fedcue.errors import ConfigError
from fedcue.flower.gate.application import Gate, Seldom
from fedcue.flower.gate.connection import Connection
from fedcue.flower.gate.outside import Outside
from fedcue.flower.gate.rules import Limits

FILES = ("ca.crt", "server.pem", "server.key")
LOOPBACK = "127.0.0.1"
GRACE = 10.0
"""Seconds that the SuperLink and open requests have to end."""
_KEEP_ALIVE = 30
"""Seconds an idle connection of a node is kept; Flower's nodes give theirs up after 5."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where the gate listens, where the SuperLink does, and the folder of their certificates."""

    host: str
    port: int
    superlink_port: int
    folder: Path

    @property
    def shown(self) -> str:
        """The gate's address as a URL shows it."""
        return (
            f"https://[{self.host}]:{self.port}" if ":" in self.host else f"https://{self.host}:{self.port}"
        )


def serve(place: Place, command: Sequence[str], limits: Limits) -> int:
    """Run ``command``, the SuperLink, and the gate before it until one ends or is told to; return a code."""
    missing = [name for name in FILES if not (place.folder / name).is_file()]
    if missing:
        where = place.folder.absolute()
        raise ConfigError(f"The gate needs {', '.join(missing)} in {where}. Start it as superlink.sh does.")
    with listen(place, limits) as outside, asyncio.Runner(loop_factory=partial(Loop, limits)) as runner:
        return runner.run(_serve(place, outside, command, limits))


def listen(place: Place, limits: Limits) -> Outside:
    """Take the address outside before anything is started."""
    outside = Outside(socket.AF_INET6 if ":" in place.host else socket.AF_INET, limits)
    outside.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        outside.bind((place.host, place.port))
    except OSError as error:
        outside.close()
        raise ConfigError(
            f"The gate cannot listen on {place.shown}: {error.strerror or error}. End what listens there, or "
            "change --port here and in the nodes' scripts."
        ) from error
    return outside


async def _serve(place: Place, outside: socket.socket, command: Sequence[str], limits: Limits) -> int:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with _superlink(command) as ended, client(place) as superlink:
        stop = asyncio.create_task(asked.wait())
        ready = asyncio.create_task(_ready(superlink))
        await asyncio.wait({ended, stop, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and not stop.done() and not ended.done():
            server = Server(configuration(Gate(superlink, limits), place.folder))
            serving = asyncio.create_task(server.serve([outside]))
            while not (server.started or serving.done()):
                await asyncio.sleep(0.01)
            log.warning("nodes may connect to %s", place.shown)
            await asyncio.wait({ended, stop, serving}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            await serving
        ready.cancel()
        stop.cancel()
        if ended.done() and not asked.is_set():
            log.warning("the SuperLink ended with code %d, and so does the gate", ended.result())
            return ended.result() if ended.result() > 0 else 1
        return 0


@contextlib.asynccontextmanager
async def _superlink(command: Sequence[str]) -> AsyncIterator[asyncio.Task[int]]:
    """Run the SuperLink; whatever ends the gate ends it too."""
    try:
        process = await asyncio.create_subprocess_exec(*command, preexec_fn=_end_with_the_gate)
    except OSError as error:
        raise ConfigError(
            f"{command[0]} cannot be started ({error.strerror}). Is Flower installed?"
        ) from error
    ended = asyncio.create_task(process.wait())
    try:
        yield ended
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait({ended}, timeout=GRACE)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await ended


def _end_with_the_gate() -> None:
    """Ask Linux to end this process when its parent dies, even by SIGKILL.

    A SuperLink that was asked politely would wait for whoever still reads its log.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG


def client(place: Place) -> httpx.AsyncClient:
    """Return the gate's own connections to the SuperLink: loopback, TLS, verified, no proxy in between.

    Their number is that of the connections outside, which is limited.
    """
    context = ssl.create_default_context(cafile=str(place.folder / "ca.crt"))
    return httpx.AsyncClient(
        base_url=f"https://{LOOPBACK}:{place.superlink_port}",
        verify=context,
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(60.0, connect=5.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=2.0),
    )


async def _ready(superlink: httpx.AsyncClient) -> None:
    """Wait until the SuperLink answers."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            await superlink.get("/health")
            return
        await asyncio.sleep(0.2)


def configuration(gate: Gate, certificates: Path | None) -> uvicorn.Config:
    """Return how uvicorn serves the gate; without certificates, in plain text (for tests)."""
    for name in ("uvicorn.error", "asyncio"):
        own = logging.getLogger(name)
        if not any(isinstance(one, Seldom) for one in own.filters):
            own.addFilter(Seldom())
    protocol = partial(Connection, limits=gate.limits)
    return uvicorn.Config(
        gate,
        http=cast(Any, protocol),
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="error",
        h11_max_incomplete_event_size=16 * 2**10,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(GRACE),
        ssl_certfile=certificates / "server.pem" if certificates else None,
        ssl_keyfile=certificates / "server.key" if certificates else None,
    )


class Server(uvicorn.Server):
    """A server that leaves signals to its owner."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Capture none."""
        yield


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait long for a handshake."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        """Create a server as ever, with a limit on the time of a TLS handshake."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = self._limits.head_seconds
        return await super().create_server(*arguments, **options)
