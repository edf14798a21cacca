"""The page while runs go on: a small server that tells the browser when something changed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from fedcue.errors import ConfigError, RunFolderError
from fedcue.report.page import render
from fedcue.report.runs import RunRecord, read_run, run_folders

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_WATCHED = ("config.toml", "metrics.jsonl", "summary.json", ".lock")
_LOOK_EVERY = 1.0
_BEAT_EVERY = 15.0

_Signature = tuple[tuple[str, int, int], ...]


class Following:
    """The runs below a folder, read again only when their files change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[_Signature, RunRecord]] = {}
        self._page: tuple[object, str] = (None, "")

    def signatures(self) -> dict[Path, _Signature]:
        """Return size and time of the files by which a run shows that it went on."""
        return {folder: tuple(_signature(folder)) for folder in run_folders(self.folder)}

    def page(self) -> str:
        """Return the page as it is now."""
        now = self.signatures()
        if self._page[0] != now:
            self._known = {
                folder: known
                if (known := self._known.get(folder)) and known[0] == signature
                else (signature, read_run(folder))
                for folder, signature in now.items()
            }
            self._page = (now, render([run for _, run in self._known.values()], live=True))
        return self._page[1]


def _signature(folder: Path) -> Iterator[tuple[str, int, int]]:
    for name in _WATCHED:
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        yield name, status.st_size, status.st_mtime_ns


def application(folder: Path, names: Collection[str] = ()) -> Starlette:
    """Return the web application: the page at ``/`` and its events at ``/events``.

    It answers only to its own names and to addresses: no other site can read it through the browser.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import HTMLResponse, PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    following = Following(folder)

    async def page(request: Request) -> Response:
        if not is_meant(request.headers.get("host", ""), names):
            return refusal()
        return HTMLResponse(await run_in_threadpool(following.page), headers={"Cache-Control": "no-store"})

    async def events(request: Request) -> Response:
        if not is_meant(request.headers.get("host", ""), names):
            return refusal()
        return StreamingResponse(changes(following, request), media_type="text/event-stream")

    def refusal() -> Response:
        return PlainTextResponse("This is no name of this machine. Use its address.\n", 400)

    return Starlette(routes=[Route("/", page), Route("/events", events)])


def is_meant(host: str, names: Collection[str]) -> bool:
    """Tell whether a Host header names this machine: anybody can let a name of his own lead here.

    An address cannot be made to lead elsewhere, so that any address will do.
    """
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return bool(ip_address(name))
    except ValueError:
        return name.lower() in {"localhost", socket.gethostname().lower(), *map(str.lower, names)}


async def changes(following: Following, request: Request) -> AsyncIterator[str]:
    """Yield an event whenever a run below the folder went on, and a beat now and then."""
    seen, quiet = following.signatures(), 0.0
    yield "retry: 1000\n\n"
    while not await request.is_disconnected():
        await asyncio.sleep(_LOOK_EVERY)
        now, quiet = following.signatures(), quiet + _LOOK_EVERY
        if now != seen:
            seen, quiet = now, 0.0
            yield f"event: change\ndata: {json.dumps({'runs': len(now)})}\n\n"
        elif quiet >= _BEAT_EVERY:
            quiet = 0.0
            yield ": still here\n\n"


def serve(folder: Path, host: str, port: int, ready: Callable[[], None]) -> None:
    """Serve the page until interrupted; ``ready`` is called once it can be visited."""
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is not a folder. Give the folder that holds the runs.")
    try:
        import uvicorn

        app = application(folder, [host])
    except ImportError as error:
        raise ConfigError("fedcue watch needs its extra: pip install 'fedcue[watch]'.") from error
    with _listening(host, port) as listening:
        ready()
        settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(settings).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {host}:{port} ({error.strerror or error}). Give another --port or --host."
        ) from error
