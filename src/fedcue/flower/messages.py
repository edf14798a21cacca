"""What crosses the network: a few numbers as JSON, and named tensors as safetensors bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedcue.errors import ClientError
from fedcue.flower.terms import Terms
from fedcue.secure.fixed_point import FixedPoint
from fedcue.secure.session import Session
from fedcue.types import Download, Tensors, pack, unpack

JOIN, WARM_UP, TRAIN, EVALUATE = "query.join", "train.warm_up", "train", "evaluate"
SECURE = "train.secure"
"""Flower's message types that a client answers."""


@dataclass(frozen=True)
class Order:
    """Work for one client: what it is sent, and which of its memories it is to load."""

    client: int
    download: Download | None = None
    memory: int | None = None
    """The round whose memory to load; none for a client that starts afresh."""
    final: bool = False
    session: Session | None = None
    """The secure sum that what comes of it is for."""
    request: bytes = b""
    """The server's message in the next step of that sum."""


@dataclass(frozen=True)
class Outcome:
    """What one client answers: an update, a score, or why there is neither."""

    client: int
    tensors: Tensors = field(default_factory=dict)
    samples: int = 0
    loss: float | None = None
    score: tuple[int, int] | None = None
    """Test images got right, and all of them."""
    message: bytes = b""
    """The client's message in a secure sum."""
    failure: str | None = None


@dataclass(frozen=True)
class Member:
    """A client's description of itself when it joins."""

    id: int
    name: str
    domain: str
    heldout: bool
    train_size: int
    test_size: int
    validation_size: int = 0
    spent: float = 0.0
    """What its images have released under differential privacy, in all runs: see ``journal``."""
    identity: str = ""
    """Its public key for secure sums, in hexadecimal digits."""


def write_orders(terms: Terms, orders: Sequence[Order]) -> RecordDict:
    """Return the message to a node; tensors that several of its clients need are sent once."""
    content = RecordDict({"terms": ConfigRecord({"json": terms.to_json()})})
    session = next((order.session for order in orders), None)
    if session is not None:
        content["session"] = ConfigRecord({"json": write_session(session)})
    sent: dict[tuple[tuple[str, int], ...], int] = {}
    lines = []
    for number, order in enumerate(orders):
        line: dict[str, Any] = {"client": order.client, "memory": order.memory, "final": order.final}
        if order.download is not None:
            line["round"] = order.download.round
            tensors = order.download.tensors
            same = tuple((name, id(tensor)) for name, tensor in tensors.items())
            if same not in sent:
                content[f"tensors-{len(sent)}"] = _arrays(tensors)
            line["tensors"] = sent.setdefault(same, len(sent))
        if order.request:
            content[f"request-{number}"] = _bytes(order.request)
        lines.append(line)
    content["orders"] = ConfigRecord({"json": json.dumps(lines)})
    return content


def read_orders(content: RecordDict) -> tuple[Terms, list[Order]]:
    """Return the terms and the orders in a message of the server."""
    orders, terms = [], Terms.from_json(read_text(content, "terms"))
    session = read_session(read_text(content, "session"), terms.run) if "session" in content else None
    for number, line in enumerate(json.loads(read_text(content, "orders"))):
        download = None
        if "tensors" in line:
            tensors = unpack(read_bytes(content, f"tensors-{line['tensors']}"))
            download = Download(line["client"], line["round"], tensors)
        request = read_bytes(content, f"request-{number}") if f"request-{number}" in content else b""
        orders.append(Order(line["client"], download, line["memory"], line["final"], session, request))
    return terms, orders


def write_session(session: Session) -> str:
    """Return what all who take part in a secure sum must agree on; the run's name is in the terms."""
    fixed = session.fixed_point
    values = {"round": session.round, "attempt": session.attempt, "threshold": session.threshold}
    values |= {"words": session.words, "fraction_bits": fixed.fraction_bits}
    identities = {str(client): key.hex() for client, key in session.identities.items()}
    return json.dumps({**values, "limit": fixed.limit, "identities": identities})


def read_session(text: str, run: str) -> Session:
    """Read what ``write_session`` wrote."""
    values = json.loads(text)
    fixed = FixedPoint(values.pop("fraction_bits"), values.pop("limit"))
    identities = {int(client): bytes.fromhex(key) for client, key in values.pop("identities").items()}
    return Session(run, identities=identities, fixed_point=fixed, **values)


def write_outcomes(outcomes: Sequence[Outcome]) -> RecordDict:
    """Return a node's reply."""
    content, lines = RecordDict(), []
    for number, outcome in enumerate(outcomes):
        line = {
            "client": outcome.client,
            "samples": outcome.samples,
            "loss": outcome.loss,
            "score": outcome.score,
            "failure": outcome.failure,
        }
        if outcome.tensors:
            content[f"tensors-{number}"] = _arrays(outcome.tensors)
        if outcome.message:
            content[f"message-{number}"] = _bytes(outcome.message)
        lines.append(line)
    content["outcomes"] = ConfigRecord({"json": json.dumps(lines)})
    return content


def write_members(members: Sequence[Member]) -> RecordDict:
    """Return a node's answer to joining: the clients it hosts."""
    return RecordDict({"members": ConfigRecord({"json": json.dumps([vars(member) for member in members])})})


def write_refusal(reason: str) -> RecordDict:
    """Return a node's answer if it cannot take part."""
    return RecordDict({"refused": ConfigRecord({"json": json.dumps(reason)})})


def _arrays(tensors: Tensors) -> ArrayRecord:
    return _bytes(pack(tensors))


def _bytes(data: bytes) -> ArrayRecord:
    return ArrayRecord({"data": Array("uint8", (len(data),), "safetensors", data)})


def read_bytes(content: RecordDict, key: str) -> bytes:
    """Return the bytes under a key."""
    record = content[key]
    if not isinstance(record, ArrayRecord):
        raise ClientError(f"{key} is not a record of arrays")
    return record["data"].data


def read_text(content: RecordDict, key: str) -> str:
    """Return the text under a key."""
    record = content[key]
    if not isinstance(record, ConfigRecord):
        raise ClientError(f"{key} is not a record of settings")
    text = record["json"]
    if not isinstance(text, str):
        raise ClientError(f"{key} is not a text")
    return text
