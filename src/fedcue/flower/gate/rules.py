"""Who gets through the gate: an allow-list of requests, and limits on their size, rate and time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Any

CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""What a node with a key asks of Flower. The server admits keys, so no node registers itself."""
PATHS = {f"/v1/fleet/{call}".encode(): f"/v1/fleet/{call}" for call in CALLS}
"""The allowed paths: the bytes as they stand in a request, and what the SuperLink is asked for."""
PASSED = frozenset(
    {
        b"accept",
        b"flwr-public-key",
        b"flwr-signature",
        b"flwr-timestamp",
        b"flwr-package-name",
        b"flwr-package-version",
        b"flwr-component-name",
    }
)
"""The headers that the SuperLink is given as they are; all others end at the gate."""
ADDED = ((b"content-type", b"application/protobuf"), (b"accept-encoding", b"identity"))
"""The headers that the gate writes itself: the SuperLink's log holds any other type of content in full."""
RETURNED = frozenset({b"content-type", b"content-length", b"flwr-version-incompatibility-message"})
"""The headers of an answer that a node is given."""
_FRAMING = (b"transfer-encoding", b"upgrade", b"expect", b"te", b"trailer")
"""Headers that change where a request ends or what follows it. Flower's nodes send none of them."""
MAX_PEERS = 4096
"""Addresses whose rate is remembered."""


@dataclass(frozen=True)
class Limits:
    """What one address, and all together, may ask of the gate."""

    body_bytes: int = 16 * 2**20
    """Largest body. Flower cuts arrays into pieces of 5 MiB."""
    requests_per_second: float = 50.0
    """Requests of one address, over time."""
    burst: int = 500
    """Requests of one address at once."""
    connections_per_address: int = 64
    """Open connections of one address."""
    connections: int = 512
    """Open connections of all addresses."""
    head_seconds: float = 10.0
    """Time to shake hands, and then to send the head of a request."""
    request_seconds: float = 300.0
    """Time for a request and its answer."""


@dataclass(frozen=True)
class Refusal:
    """Why a request does not get through. No code is one that makes a node believe in a stopped run."""

    status: int
    reason: str


def refusal(scope: Mapping[str, Any], limits: Limits) -> Refusal | None:
    """Return why a request is refused, or nothing if it may pass; ``scope`` is the ASGI description of it."""
    if scope["http_version"] != "1.1":
        return Refusal(505, "not HTTP/1.1")
    if scope["raw_path"] not in PATHS or scope["query_string"] or scope["method"] != "POST":
        return Refusal(404, "not what a node asks for")
    names = [name for name, _ in scope["headers"]]
    if len(set(names)) < len(names):
        return Refusal(400, "a header stands twice")
    for name in _FRAMING:
        if name in names:
            return Refusal(400, f"the header {name.decode()}")
    for name, value in scope["headers"]:
        if name in PASSED and not (value.isascii() and value.decode().isprintable()):
            return Refusal(400, f"a mark in the header {name.decode()}")
    return _body_refusal(dict(scope["headers"]).get(b"content-length"), limits.body_bytes)


def _body_refusal(length: bytes | None, largest: int) -> Refusal | None:
    if length is None or not length.isdigit():
        return Refusal(411, "no Content-Length")
    if len(length) > 19 or int(length) > largest:
        return Refusal(413, f"a body of more than {largest} bytes")
    return None


class Rate:
    """How often each address may ask: a full bucket of requests that refills steadily."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admits(self, address: str) -> bool:
        """Take a request from the address's bucket; tell whether there was one."""
        now = self._clock()
        left, before = self._buckets.pop(address, (float(self._limits.burst), now))
        left = min(self._limits.burst, left + (now - before) * self._limits.requests_per_second)
        self._buckets[address] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > MAX_PEERS:
            self._buckets.popitem(last=False)
        return left >= 1


def peer(client: tuple[str, int] | None) -> str:
    """Return whom a connection counts for: its address, or the network of 64 bits of an IPv6 address."""
    if client is None:
        return ""
    try:
        address = ip_address(client[0].partition("%")[0])
    except ValueError:
        return client[0]
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(address.ipv4_mapped if isinstance(address, IPv6Address) else address)
