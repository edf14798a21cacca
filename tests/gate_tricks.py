"""Requests that must not get through the gate, as bytes, and how to read what comes back."""

from __future__ import annotations

import socket

GOOD = "/v1/fleet/pull-messages"


def head(target: str = GOOD, *headers: str, method: str = "POST", version: str = "1.1") -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "Host: gate", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def received(plain: socket.socket) -> bytes:
    answer = b""
    try:
        while part := plain.recv(65536):
            answer += part
    except ConnectionResetError:
        pass  # sent and closed at once, with bytes unread
    return answer


def is_refused(answer: bytes) -> bool:
    """Tell whether an answer refuses, and whether what follows on the connection is left unread."""
    refused = answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505"))
    return refused and b"\r\nconnection: close\r\n" in answer.lower()


BODY = "Content-Length: 0"
TRICKS = {
    "root": head("/", BODY),
    "control": head("/v1/control/start-run", BODY),
    "runtime": head("/v1/runtime/acquire-task", BODY),
    "health": head("/health", method="GET"),
    "docs": head("/docs", method="GET"),
    "schema": head("/openapi.json", method="GET"),
    "registering itself": head("/v1/fleet/register-node", BODY),
    "unregistering": head("/v1/fleet/unregister-node", BODY),
    "slashes": head("//v1/fleet/pull-messages", BODY),
    "slash inside": head("/v1//fleet/pull-messages", BODY),
    "slash at the end": head(GOOD + "/", BODY),
    "dots": head("/v1/fleet/../control/start-run", BODY),
    "dots that come back": head("/v1/control/../fleet/pull-messages", BODY),
    "dots after a good path": head(GOOD + "/../../control/start-run", BODY),
    "a dot": head("/v1/./fleet/pull-messages", BODY),
    "encoded dots": head("/v1/fleet/%2e%2e/control/start-run", BODY),
    "encoded slash": head("/v1/fleet%2fpull-messages", BODY),
    "encoded twice": head("/v1/fleet/%252e%252e/control/start-run", BODY),
    "encoded letter": head("/v1/%66leet/pull-messages", BODY),
    "encoded null": head(GOOD + "%00", BODY),
    "upper case": head("/V1/FLEET/PULL-MESSAGES", BODY),
    "upper case of one": head("/v1/Fleet/pull-messages", BODY),
    "backslash": head("/v1/fleet\\..\\control\\start-run", BODY),
    "semicolon": head(GOOD + ";/../control/start-run", BODY),
    "query": head(GOOD + "?a=b", BODY),
    "fragment": head(GOOD + "#/v1/control/start-run", BODY),
    "no slash": head("v1/fleet/pull-messages", BODY),
    "absolute": head("https://127.0.0.1:8001/v1/control/start-run", BODY),
    "absolute and good": head(f"https://gate{GOOD}", BODY),
    "another scheme": head(f"file://{GOOD}", BODY),
    "star": head("*", method="OPTIONS"),
    "connect": head("127.0.0.1:8001", method="CONNECT"),
    "GET": head(method="GET"),
    "HEAD": head(method="HEAD"),
    "PUT": head(GOOD, BODY, method="PUT"),
    "lower-case method": head(GOOD, BODY, method="post"),
    "overridden method": head(GOOD, BODY, "X-HTTP-Method-Override: POST", method="GET"),
    "HTTP/1.0": head(GOOD, BODY, version="1.0"),
    "HTTP/0.9": b"POST " + GOOD.encode() + b"\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": head(GOOD, BODY, version="1.2"),
    "chunked": head(GOOD, "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "chunked and a length": head(GOOD, BODY, "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "length and chunked": head(GOOD, "Transfer-Encoding: chunked", "Content-Length: 5") + b"0\r\n\r\n",
    "chunked, in disguise": head(GOOD, BODY, "Transfer-Encoding : chunked") + b"0\r\n\r\n",
    "chunked, folded": head(GOOD, BODY, "Transfer-Encoding:\r\n chunked") + b"0\r\n\r\n",
    "chunked, twice": head(GOOD, "Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n",
    "another encoding": head(GOOD, "Transfer-Encoding: gzip") + b"0\r\n\r\n",
    "two lengths": head(GOOD, "Content-Length: 0", "Content-Length: 5") + b"hello",
    "lengths in one": head(GOOD, "Content-Length: 0, 5") + b"hello",
    "a length below 0": head(GOOD, "Content-Length: -1"),
    "a length with a sign": head(GOOD, "Content-Length: +0"),
    "a length in hexadecimal": head(GOOD, "Content-Length: 0x5") + b"hello",
    "no length": head(GOOD),
    "a huge length": head(GOOD, "Content-Length: 16777217"),
    "an endless length": head(GOOD, "Content-Length: 9" + "9" * 30),
    "a header twice": head(GOOD, BODY, "flwr-public-key: a", "Flwr-Public-Key: b"),
    "two hosts": head(GOOD, BODY, "Host: other"),
    "no host": b"POST " + GOOD.encode() + b" HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "a null in a header": head(GOOD, BODY, "flwr-signature: a\0b"),
    "a line in a header": head(GOOD, BODY, "flwr-signature: a\rflwr-public-key: b"),
    "an escape in a header": head(GOOD, BODY, "flwr-signature: \x1b[2J"),
    "8 bits in a header": head(GOOD, BODY, "flwr-signature: \x9b2J"),
    "an upgrade": head(GOOD, BODY, "Upgrade: websocket", "Connection: Upgrade"),
    "an upgrade to HTTP/2": head(GOOD, BODY, "Upgrade: h2c"),
    "an expectation": head(GOOD, "Content-Length: 5", "Expect: 100-continue") + b"hello",
    "a head without end": b"POST " + GOOD.encode() + b" HTTP/1.1\r\nA: " + b"a" * 40_000,
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n",
}  # fmt: skip
