"""What a node may say: read and checked in this one place, before anything else sees it.

Whatever is wrong with an answer to joining is a ``ClientError``, whatever is wrong with a reply a named
failure of the client. What passes is of the declared names, shapes and types, agrees with the sizes the
client joined with, and is so small that sums over any number of clients stay finite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from flwr.app import RecordDict

from fedcue.errors import ClientError, printable
from fedcue.flower.expected import LARGEST, Expected, ExpectedMessage
from fedcue.flower.messages import Member, Outcome, read_bytes, read_text
from fedcue.flower.reasons import cleaned
from fedcue.rounds.engine import Failure
from fedcue.types import pack, unpack

MOST_IMAGES = 10**9
"""Images that a client may claim."""
_IDENTITY = re.compile("(?:[0-9a-f]{64})?")
"""A public key, or none where no secure sum is asked for."""
NAME, LINE = 100, 8192
"""The most characters of a name, and of the description of one client."""


def read_members(answer: RecordDict | str, clients: int) -> list[Member]:
    """Return the clients that a node says it hosts, or raise a ``ClientError`` that says why not."""
    if isinstance(answer, str):
        raise ClientError(cleaned(answer))
    with _reading():
        if "refused" in answer:
            raise ClientError(cleaned(str(json.loads(_short(answer, "refused", 1)))))
        lines = json.loads(_short(answer, "members", clients))
        members = [_member(line, clients) for line in _listed(lines, clients)]
        if not members or len({member.id for member in members}) < len(members):
            raise ClientError("it names no client, or one of them twice")
        return members


def read_outcomes(
    answer: RecordDict | str,
    clients: Sequence[int],
    expected: Expected | ExpectedMessage,
    joined: Mapping[int, Member],
) -> dict[int, Outcome | Failure]:
    """Return what came of each client that a node was asked for; what is not as expected is its failure."""
    try:
        if isinstance(answer, str):
            raise ClientError(answer)
        places = _places(answer, clients)
    except ClientError as error:
        return {client: Failure(client, cleaned(str(error))) for client in clients}
    found: dict[int, Outcome | Failure] = {}
    for client in clients:
        try:
            with _reading():
                number, line = places[client]
                found[client] = _outcome(answer, number, line, expected, joined[client])
        except ClientError as error:
            found[client] = Failure(client, cleaned(str(error)))
    return found


def _places(content: RecordDict, clients: Sequence[int]) -> dict[int, tuple[int, Any]]:
    """Return where a reply speaks of each client."""
    with _reading():
        lines = _listed(json.loads(_short(content, "outcomes", len(clients))), len(clients))
        places = {line["client"]: (number, line) for number, line in enumerate(lines)}
        if any(type(client) is not int for client in places) or places.keys() != set(clients):
            raise ClientError("its node's reply does not speak of every client, once, and of no other")
        return places


def _outcome(
    content: RecordDict,
    number: int,
    line: Mapping[str, Any],
    expected: Expected | ExpectedMessage,
    member: Member,
) -> Outcome:
    if line["failure"] is not None:
        raise ClientError(str(line["failure"]))
    if isinstance(expected, ExpectedMessage):
        expected.take(member.id, _data(content, f"message-{number}", expected.most_bytes))
        return Outcome(member.id)
    if expected.tested is not None:
        size = member.test_size if expected.tested == "test" else member.validation_size
        return Outcome(member.id, score=_score(line["score"], size))
    data = _data(content, f"tensors-{number}", expected.most_bytes) if expected.specs else pack({})
    images = _whole(line["samples"], 0, MOST_IMAGES, "number of images")
    if images != member.train_size:
        raise ClientError(f"it claims {images} images, but joined with {member.train_size}")
    tensors = unpack(data)
    expected.check(tensors, images)
    loss = line["loss"]
    if loss is not None and not (type(loss) in (int, float) and abs(loss) <= LARGEST):
        raise ClientError("its loss is not a number, or too large")
    return Outcome(member.id, tensors, images, None if loss is None else float(loss))


def _data(content: RecordDict, key: str, most: int) -> bytes:
    data = read_bytes(content, key)
    if len(data) > most:
        raise ClientError(f"its reply holds {len(data)} bytes, at most {most} were expected")
    return data


def _score(score: Any, size: int) -> tuple[int, int]:
    if type(score) is not list or len(score) != 2:
        raise ClientError("it sent no score")
    total = _whole(score[1], 0, MOST_IMAGES, "number of tested images")
    right = _whole(score[0], 0, total, "number of right images")
    if total != size:
        raise ClientError(f"it was tested on {total} images, but joined with {size}")
    return right, total


def _member(line: Any, clients: int) -> Member:
    if type(line) is not dict or line.keys() != {field.name for field in fields(Member)}:
        raise ClientError("it does not describe its clients as asked")
    spent = line["spent"]
    if type(line["heldout"]) is not bool or type(spent) not in (int, float) or not 0 <= spent <= LARGEST:
        raise ClientError("it does not say whether its clients are held out, or what they released before")
    return Member(
        _whole(line["id"], 0, clients - 1, "client id"),
        _name(line["name"]),
        _name(line["domain"]),
        line["heldout"],
        _whole(line["train_size"], 1, MOST_IMAGES, "train_size"),
        _whole(line["test_size"], 0, MOST_IMAGES, "test_size"),
        _whole(line["validation_size"], 0, MOST_IMAGES, "validation_size"),
        float(spent),
        _identity(line["identity"]),
    )


def _whole(value: Any, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ClientError(f"its {what} is not a whole number from {low} to {high}")
    return value


def _name(value: Any) -> str:
    if type(value) is not str or len(value) > NAME:
        raise ClientError(f"its names must be texts of at most {NAME} characters")
    return printable(value)


def _identity(value: Any) -> str:
    if type(value) is not str or not _IDENTITY.fullmatch(value):
        raise ClientError("its key for secure sums has not 64 hexadecimal digits")
    return value


def _listed(value: Any, most: int) -> list[Any]:
    if type(value) is not list or len(value) > most:
        raise ClientError(f"it must describe at most {most} clients")
    return value


def _short(content: RecordDict, key: str, clients: int) -> str:
    text = read_text(content, key)
    if len(text) > LINE * (clients + 1):
        raise ClientError(f"it says too much: {len(text)} characters for {clients} clients")
    return text


@contextmanager
def _reading() -> Iterator[None]:
    """Turn every error of reading foreign bytes into a ``ClientError``."""
    try:
        yield
    except ClientError:
        raise
    except Exception as error:
        raise ClientError(f"its reply cannot be read ({type(error).__name__})") from error
