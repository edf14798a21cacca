"""What crosses the network: a few numbers as JSON, and named tensors as safetensors bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError

from fedcue.errors import ClientError
from fedcue.flower.terms import Terms
from fedcue.types import Download, Tensors, pack, unpack

JOIN, WARM_UP, TRAIN, EVALUATE = "query.join", "train.warm_up", "train", "evaluate"
"""Flower's message types that a client answers."""


UNUSABLE = (
    ClientError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError,
    AssertionError, SafetensorError,
)  # fmt: skip
"""What reading a message that somebody else wrote can end in."""


@dataclass(frozen=True)
class Order:
    """Work for one client: what it is sent, and which of its memories it is to load."""

    client: int
    download: Download | None = None
    memory: int | None = None
    """The round whose memory to load; none for a client that starts afresh."""
    final: bool = False


@dataclass(frozen=True)
class Outcome:
    """What one client answers: an update, a score, or why there is neither."""

    client: int
    tensors: Tensors = field(default_factory=dict)
    samples: int = 0
    loss: float | None = None
    score: tuple[int, int] | None = None
    """Test images got right, and all of them."""
    failure: str | None = None


@dataclass(frozen=True)
class Member:
    """What a client tells of itself when it joins."""

    id: int
    name: str
    domain: str
    heldout: bool
    train_size: int
    test_size: int


def write_orders(terms: Terms, orders: Sequence[Order]) -> RecordDict:
    """Return the message to a node; tensors that several of its clients need are sent once."""
    content = RecordDict({"terms": ConfigRecord({"json": terms.to_json()})})
    sent: dict[tuple[tuple[str, int], ...], int] = {}
    lines = []
    for order in orders:
        line: dict[str, Any] = {"client": order.client, "memory": order.memory, "final": order.final}
        if order.download is not None:
            line |= {"round": order.download.round, "seed": order.download.seed}
            tensors = order.download.tensors
            same = tuple((name, id(tensor)) for name, tensor in tensors.items())
            if same not in sent:
                content[f"tensors-{len(sent)}"] = _arrays(tensors)
            line["tensors"] = sent.setdefault(same, len(sent))
        lines.append(line)
    content["orders"] = ConfigRecord({"json": json.dumps(lines)})
    return content


def read_orders(content: RecordDict) -> tuple[Terms, list[Order]]:
    """Return the terms and the orders in a message of the server."""
    orders = []
    for line in json.loads(_text(content, "orders")):
        download = None
        if "tensors" in line:
            tensors = unpack(_bytes(content, f"tensors-{line['tensors']}"))
            download = Download(line["client"], line["round"], line["seed"], tensors)
        orders.append(Order(line["client"], download, line["memory"], line["final"]))
    return Terms.from_json(_text(content, "terms")), orders


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
        lines.append(line)
    content["outcomes"] = ConfigRecord({"json": json.dumps(lines)})
    return content


def read_outcomes(content: RecordDict, most_bytes: int) -> dict[int, Outcome]:
    """Return a node's outcomes by client; whatever is wrong with one is that client's failure."""
    lines = json.loads(_text(content, "outcomes"))
    found = {}
    for number, line in enumerate(lines):
        client = int(line["client"])
        try:
            found[client] = _outcome(content, number, line, most_bytes)
        except UNUSABLE as error:
            found[client] = Outcome(client, failure=f"its reply is not usable: {str(error)[:500]}")
    return found


def _outcome(content: RecordDict, number: int, line: dict[str, Any], most_bytes: int) -> Outcome:
    if line.get("failure") is not None:
        return Outcome(int(line["client"]), failure=str(line["failure"])[:500])
    tensors: Tensors = {}
    if f"tensors-{number}" in content:
        data = _bytes(content, f"tensors-{number}")
        if len(data) > most_bytes:
            raise ClientError(f"it holds {len(data)} bytes, at most {most_bytes} were expected")
        tensors = unpack(data)
    loss, score = line["loss"], line["score"]
    if loss is not None and not math.isfinite(loss):
        raise ClientError(f"its loss is {loss}")
    if score is not None:
        score = (int(score[0]), int(score[1]))
        if not 0 <= score[0] <= score[1]:
            raise ClientError(f"it got {score[0]} of {score[1]} images right")
    return Outcome(int(line["client"]), tensors, int(line["samples"]), loss, score)


def write_members(members: Sequence[Member]) -> RecordDict:
    """Return a node's answer to joining: the clients it hosts."""
    return RecordDict({"members": ConfigRecord({"json": json.dumps([vars(member) for member in members])})})


def write_refusal(reason: str) -> RecordDict:
    """Return a node's answer if it cannot take part."""
    return RecordDict({"refused": ConfigRecord({"json": json.dumps(reason)})})


def read_members(content: RecordDict) -> list[Member] | str:
    """Return the clients a node hosts, or why it cannot take part."""
    if "refused" in content:
        return str(json.loads(_text(content, "refused")))
    return [_member(line) for line in json.loads(_text(content, "members"))]


def _member(line: dict[str, Any]) -> Member:
    member = Member(**line)
    sizes = (member.id, member.train_size, member.test_size)
    if not all(type(size) is int and 0 <= size < 2**53 for size in sizes) or not member.train_size:
        raise ClientError(f"its ids and sizes must be whole numbers and no train_size 0, not {sizes}")
    if type(member.heldout) is not bool:
        raise ClientError("it does not say whether its clients are held out")
    return replace(member, name=str(member.name)[:100], domain=str(member.domain)[:100])


def _arrays(tensors: Tensors) -> ArrayRecord:
    data = pack(tensors)
    return ArrayRecord({"data": Array("uint8", (len(data),), "safetensors", data)})


def _bytes(content: RecordDict, key: str) -> bytes:
    record = content[key]
    if not isinstance(record, ArrayRecord):
        raise ClientError(f"{key} is not a record of arrays")
    return record["data"].data


def _text(content: RecordDict, key: str) -> str:
    record = content[key]
    if not isinstance(record, ConfigRecord):
        raise ClientError(f"{key} is not a record of settings")
    return str(record["json"])
