"""The gate before a SuperLink that is faked: what passes, what does not, and how much of it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import httpx
from gate_tricks import BODY, GOOD, TRICKS, head, is_refused, received

from fedcue.errors import ConfigError
from fedcue.flower.certificates import write_ca, write_server_certificate
from fedcue.flower.gate.application import Complaints, Gate
from fedcue.flower.gate.outside import Outside
from fedcue.flower.gate.rules import CALLS, MAX_PEERS, PATHS, Limits, Rate, Refusal, peer, refusal
from fedcue.flower.gate.serve import Loop, Place, Server, client, configuration, serve


class FakeLink:
    """Stands for the SuperLink: remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self.bodies: list[bytes] = []
        self.failure: Exception | None = None
        self.wait = 0.0
        self.breaks = False
        self.more = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(await request.aread())
        self.asked.append(request)
        if self.failure is not None:
            raise self.failure
        await asyncio.sleep(self.wait)
        headers = {"content-type": "application/x-protobuf", "server": "inside", "set-cookie": "a=b"}
        length = str(6 + self.more * 2**16)
        return httpx.Response(200, content=self.answer(), headers={**headers, "content-length": length})

    async def answer(self) -> AsyncIterator[bytes]:
        for _ in range(self.more):
            yield bytes(2**16)
        yield b"ans"
        if self.breaks:
            raise httpx.ReadError("gone")
        yield b"wer"


def serving(server: Server, listening: Outside, limits: Limits) -> None:
    """Serve as the gate does, on the gate's own event loop."""
    with asyncio.Runner(loop_factory=lambda: Loop(limits)) as runner:
        runner.run(server.serve([listening]))


@contextmanager
def standing(limits: Limits) -> Iterator[tuple[FakeLink, int]]:
    """Serve a gate without TLS on a free port of loopback."""
    link = FakeLink()
    client = httpx.AsyncClient(transport=httpx.MockTransport(link), base_url="https://127.0.0.1:1")
    server = Server(configuration(Gate(client, limits), None))
    with Outside(socket.AF_INET, limits) as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=serving, args=(server, listening, limits))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield link, listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(30)


@pytest.fixture(scope="module")
def gate() -> Iterator[tuple[FakeLink, int]]:
    with standing(Limits(burst=100_000)) as both:
        yield both


def sent(port: int, text: bytes, seconds: float = 10) -> bytes:
    """Send bytes as they are and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as plain:
        plain.sendall(text)
        return received(plain)


def test_what_a_node_sends_arrives_untouched_and_nothing_else_does(gate: tuple[FakeLink, int]) -> None:
    link, port = gate
    key = {
        "flwr-public-key": "bm9kZQ==",
        "flwr-signature": "c2ln",
        "flwr-timestamp": "2026-01-01T00:00:00+00:00",
    }
    more = {"content-type": "application/protobuf", "flwr-package-version": "1.41.0"}
    strange = {
        "x-forwarded-for": "10.0.0.1",
        "authorization": "Bearer x",
        "flwr-task-token": "x",
        "cookie": "a=b",
    }
    answer = httpx.post(
        f"http://127.0.0.1:{port}{GOOD}", content=b"\x00\xff body", headers={**key, **more, **strange}
    )
    assert (answer.status_code, answer.content) == (200, b"answer")
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert "set-cookie" not in answer.headers
    assert answer.headers.get("server") != "inside"
    asked = link.asked[-1]
    assert (asked.method, str(asked.url)) == ("POST", f"https://127.0.0.1:1{GOOD}")
    assert link.bodies[-1] == b"\x00\xff body"
    for name, value in {**key, **more}.items():
        assert asked.headers[name] == value
    assert not set(strange) & set(asked.headers)
    assert asked.headers["content-length"] == "7"
    assert "transfer-encoding" not in asked.headers


@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_a_node_passes(gate: tuple[FakeLink, int], call: str) -> None:
    _, port = gate
    assert httpx.post(f"http://127.0.0.1:{port}/v1/fleet/{call}", content=b"").status_code == 200


def test_the_largest_piece_of_an_array_arrives_whole(gate: tuple[FakeLink, int]) -> None:
    """Flower cuts arrays into pieces of 5 MiB and adds some bytes of its own."""
    link, port = gate
    piece = os.urandom(5 * 2**20 + 1000)
    assert httpx.post(f"http://127.0.0.1:{port}/v1/fleet/push-object", content=piece).status_code == 200
    assert link.bodies[-1] == piece


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_is_refused_and_never_reaches_the_superlink(gate: tuple[FakeLink, int], trick: str) -> None:
    link, port = gate
    before = len(link.asked)
    answer = sent(port, TRICKS[trick])
    assert len(link.asked) == before
    assert is_refused(answer), answer[:200]


def test_what_is_smuggled_behind_a_refused_request_is_not_read(gate: tuple[FakeLink, int]) -> None:
    link, port = gate
    before = len(link.asked)
    good = head().replace(b"Connection: close\r\n", b"Content-Length: 0\r\n")
    refused = head("/health", method="GET").replace(b"Connection: close\r\n", b"")
    answer = sent(port, refused + good)
    assert answer.count(b"HTTP/1.1") == 1
    assert len(link.asked) == before


def test_a_request_in_the_body_of_another_stays_a_body(gate: tuple[FakeLink, int]) -> None:
    link, port = gate
    inner = head("/v1/control/start-run", BODY)
    answer = sent(port, head(GOOD, f"Content-Length: {len(inner)}") + inner)
    assert answer.startswith(b"HTTP/1.1 200")
    assert link.bodies[-1] == inner
    assert link.asked[-1].url.path == GOOD


def test_what_a_stranger_calls_a_body_is_not_told(gate: tuple[FakeLink, int]) -> None:
    """Flower writes it into its log, as long as it is."""
    link, port = gate
    for headers in ({}, {"content-type": "a" * 9000}):
        assert httpx.post(f"http://127.0.0.1:{port}{GOOD}", content=b"", headers=headers).status_code == 200
        assert link.asked[-1].headers["content-type"] == "application/protobuf"


def test_what_one_node_is_answered_is_not_told_with_the_request_of_another(
    gate: tuple[FakeLink, int],
) -> None:
    link, port = gate
    for _ in range(2):
        assert httpx.post(f"http://127.0.0.1:{port}{GOOD}", content=b"").status_code == 200
        assert "cookie" not in link.asked[-1].headers


def test_a_forbidden_request_behind_an_allowed_one_is_refused(gate: tuple[FakeLink, int]) -> None:
    link, port = gate
    before = len(link.asked)
    good = head(GOOD, BODY).replace(b"Connection: close\r\n", b"")
    answer = sent(port, good + good + head("/v1/control/start-run", BODY) + good)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"HTTP/1.1 404") == 1
    assert [asked.url.path for asked in link.asked[before:]] == [GOOD, GOOD]


def test_a_superlink_that_fails_is_a_failure_that_nodes_try_again(gate: tuple[FakeLink, int]) -> None:
    link, port = gate
    for failure, code in ((httpx.ConnectError("gone"), 502), (httpx.ReadTimeout("slow"), 504)):
        link.failure = failure
        try:
            assert httpx.post(f"http://127.0.0.1:{port}{GOOD}", content=b"").status_code == code
        finally:
            link.failure = None


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(gate: tuple[FakeLink, int]) -> None:
    link, port = gate
    link.breaks = True
    try:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"http://127.0.0.1:{port}{GOOD}", content=b"")
    finally:
        link.breaks = False


def test_whoever_asks_too_often_waits() -> None:
    limits = Limits(burst=3, requests_per_second=0.001)
    with standing(limits) as (link, port), httpx.Client(base_url=f"http://127.0.0.1:{port}") as node:
        codes = [node.post(GOOD, content=b"").status_code for _ in range(5)]
    assert codes == [200, 200, 200, 503, 503], "a code that Flower's nodes try again later"
    assert len(link.asked) == 3


def test_a_full_bucket_refills_and_addresses_do_not_share_it() -> None:
    now = [0.0]
    rate = Rate(Limits(burst=2, requests_per_second=10), lambda: now[0])
    assert [rate.admits("a") for _ in range(3)] == [True, True, False]
    assert rate.admits("b")
    now[0] = 0.1
    assert [rate.admits("a"), rate.admits("a")] == [True, False]
    now[0] = 100.0
    assert [rate.admits("a") for _ in range(3)] == [True, True, False]
    for number in range(2 * MAX_PEERS):
        rate.admits(str(number))
    assert len(rate._buckets) == MAX_PEERS


def test_an_ipv6_site_counts_as_one_address() -> None:
    assert peer(("2001:db8::1", 1)) == peer(("2001:db8::ffff:2", 9)) != peer(("2001:db8:0:1::1", 1))
    assert peer(("::ffff:10.0.0.1", 1)) == peer(("10.0.0.1", 2)) == "10.0.0.1"


def test_a_head_that_never_ends_is_cut_off() -> None:
    with standing(replace(Limits(), head_seconds=0.2)) as (_, port):
        assert sent(port, b"") == b"", "silence"
        assert sent(port, b"POST /v1/fleet") == b"", "half a head"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            plain.sendall(head(GOOD, BODY).replace(b"Connection: close\r\n", b"") + b"POST /v1")
            assert b"200" in plain.recv(4096)
            plain.sendall(b"/fleet")
            assert received(plain).count(b"HTTP/1.1") == 0, "half a head after a good request"


def test_a_body_that_never_ends_is_cut_off() -> None:
    with standing(replace(Limits(), request_seconds=0.2)) as (link, port):
        answer = sent(port, head(GOOD, "Content-Length: 100") + b"some")
        assert answer.startswith(b"HTTP/1.1 408")
        assert not link.asked


def test_a_superlink_that_never_answers_is_not_waited_for() -> None:
    with standing(replace(Limits(), request_seconds=0.2)) as (link, port):
        link.wait = 60
        assert sent(port, head(GOOD, BODY)).startswith(b"HTTP/1.1 408")


def test_whoever_does_not_read_an_answer_loses_the_connection() -> None:
    with standing(replace(Limits(), request_seconds=0.5, connections_per_address=1)) as (link, port):
        link.more = 400
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(head(GOOD, BODY))
            while not link.asked:
                time.sleep(0.01)
            assert sent(port, head(GOOD, BODY)) == b"", "the address has its one connection"
            deadline = time.monotonic() + 20
            while not sent(port, head("/health", method="GET")):
                assert time.monotonic() < deadline, "who does not read keeps a connection for good"
                time.sleep(0.05)


@pytest.mark.parametrize("limit", [{"connections_per_address": 2}, {"connections": 2}])
def test_one_address_cannot_hold_all_connections(limit: dict[str, Any]) -> None:
    with standing(replace(Limits(), **limit)) as (_, port):
        first, second = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
        with first, second:
            first.sendall(head(GOOD, BODY).replace(b"Connection: close\r\n", b""))
            assert b"200" in first.recv(4096)
            assert sent(port, head(GOOD, BODY)) == b""
        deadline = time.monotonic() + 10
        while not sent(port, head(GOOD, BODY)):
            assert time.monotonic() < deadline, "a closed connection no longer counts"


def test_refusals_do_not_fill_the_log_and_show_no_control_marks(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    complaints = Complaints(lambda: now[0])
    scope = {"method": "POST", "raw_path": b"/\x1b[2J" + b"long" * 1000, "client": ("10.0.0.1", 9)}
    for _ in range(20):
        complaints.about(scope, Refusal(404, "no"))
    assert len(caplog.messages) == 1
    now[0] = 1.0
    complaints.about(scope, Refusal(404, "no"))
    assert caplog.messages[1].endswith("of 10.0.0.1: no (and 19 more)")
    assert all("\x1b" not in line and len(line) < 300 for line in caplog.messages)


def test_a_stranger_cannot_fill_the_log_by_what_the_server_below_refuses(
    gate: tuple[FakeLink, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The head is that of a request, and what follows is no chunk: two answers are in each other's way."""
    link, port = gate
    before, started = len(link.asked), time.monotonic()
    for _ in range(20):
        answer = sent(port, head(GOOD, "Transfer-Encoding: chunked") + b"no chunk\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
    assert len(link.asked) == before
    assert len(caplog.messages) <= 2 * (time.monotonic() - started + 1)
    assert "Traceback" not in caplog.text


def test_a_path_is_compared_byte_by_byte() -> None:
    scope = {
        "http_version": "1.1", "method": "POST", "raw_path": GOOD.encode(), "query_string": b"",
        "headers": [(b"content-length", b"0")],
    }  # fmt: skip
    assert refusal(scope, Limits()) is None
    for path in PATHS:
        for position in range(len(path)):
            for other in (
                path[:position] + bytes([path[position] ^ 0x20]) + path[position + 1 :],
                path[:position],
            ):
                if other not in PATHS:
                    assert refusal({**scope, "raw_path": other}, Limits()) is not None


def test_the_gate_does_not_start_without_its_certificates_or_flower(tmp_path: Path) -> None:
    place = Place("127.0.0.1", 0, 1, tmp_path)
    with pytest.raises(ConfigError, match=r"The gate needs ca\.crt, server\.pem, server\.key in "):
        serve(place, ["true"], Limits())
    write_ca(tmp_path)
    write_server_certificate(tmp_path, tmp_path, "127.0.0.1")
    with pytest.raises(ConfigError, match="no-such-command cannot be started"):
        serve(place, ["no-such-command"], Limits())


def test_the_gate_ends_with_a_superlink_that_does_not_start(tmp_path: Path) -> None:
    write_ca(tmp_path)
    write_server_certificate(tmp_path, tmp_path, "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = Place("127.0.0.1", 0, closed.getsockname()[1], tmp_path)
        assert serve(place, ["sh", "-c", "exit 7"], Limits()) == 7


def test_a_gate_before_a_superlink_of_another_authority_lets_nothing_through(tmp_path: Path) -> None:
    """Whoever takes the SuperLink's port on loopback gets no connection without its key."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        write_ca(tmp_path / name)
        write_server_certificate(tmp_path / name, tmp_path / name, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "other" / "server.pem", tmp_path / "other" / "server.key")

    async def asked() -> None:
        impostor = await asyncio.start_server(
            lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context
        )
        port = impostor.sockets[0].getsockname()[1]
        async with impostor, client(Place("127.0.0.1", 1, port, tmp_path / "one")) as superlink:
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                await superlink.get("/health")

    asyncio.run(asked())


@contextmanager
def silent_gate(folder: Path, limits: Limits) -> Iterator[asyncio.Runner]:
    """Yield what runs a gate with TLS."""
    write_ca(folder)
    write_server_certificate(folder, folder, "127.0.0.1")
    with asyncio.Runner(loop_factory=lambda: Loop(limits)) as runner:
        yield runner


async def connected(
    folder: Path, limits: Limits, talk: Callable[[tuple[str, int]], Awaitable[bytes]]
) -> bytes:
    """Serve a gate with TLS while somebody talks to it; return what came of that."""
    server = Server(
        configuration(Gate(httpx.AsyncClient(transport=httpx.MockTransport(FakeLink())), limits), folder)
    )
    with Outside(socket.AF_INET, limits) as listening:
        listening.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        got = await talk(listening.getsockname())
        server.should_exit = True
        await serving
        return got


def test_a_tls_handshake_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    async def silent(place: tuple[str, int]) -> bytes:
        reader, writer = await asyncio.open_connection(*place)
        got = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return got

    limits = Limits(head_seconds=0.2)
    with silent_gate(tmp_path, limits) as runner:
        assert runner.run(connected(tmp_path, limits, silent)) == b""


def test_connections_that_never_shake_hands_are_counted(tmp_path: Path) -> None:
    async def many(place: tuple[str, int]) -> bytes:
        first = [await asyncio.open_connection(*place) for _ in range(2)]
        reader, writer = await asyncio.open_connection(*place)
        got = await asyncio.wait_for(reader.read(), 10)  # ended long before the time of a handshake is over
        for _, one in [*first, (reader, writer)]:
            one.close()
        await asyncio.sleep(0.2)
        reader, writer = await asyncio.open_connection(*place)  # those that were closed no longer count
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 0.3)
        writer.close()
        return got

    limits = Limits(connections_per_address=2, head_seconds=60)
    with silent_gate(tmp_path, limits) as runner:
        assert runner.run(connected(tmp_path, limits, many)) == b""
