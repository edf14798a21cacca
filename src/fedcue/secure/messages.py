"""The nine messages of the protocol: fixed layouts, one encoding each, nothing left over.

A message starts with a header: kind, round, attempt, the client it comes from or goes to, and the
digest of the session. Then follow byte strings of known length and, for some, a table of records by
ascending client id. Whatever does not decode to exactly that is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

from fedcue.secure.keys import KEY_BYTES, SEAL_BYTES, SIGNATURE_BYTES
from fedcue.secure.refusals import MessageRefused
from fedcue.secure.session import Session
from fedcue.secure.shamir import SHARE_BYTES

_MAGIC = b"FSS1"
_SEALED_BYTES = SEAL_BYTES + 2 * SHARE_BYTES
_HEADER = struct.Struct(">4sBIII32s")
_NUMBER = struct.Struct(">I")

Records = Mapping[int, bytes]
"""One byte string for each client, all of one length."""


@dataclass(frozen=True)
class Message:
    """What all messages have in common: how they are written and read."""

    kind: ClassVar[int]
    record: ClassVar[int | None] = None

    @classmethod
    def parts(cls, session: Session) -> dict[str, int]:
        """Return the byte strings before the table and their lengths."""
        return {}

    def encode(self, session: Session, client: int) -> bytes:
        """Return the message as it travels, from or to this client."""
        header = _HEADER.pack(_MAGIC, self.kind, session.round, session.attempt, client, session.digest)
        pieces = [header, *(getattr(self, name) for name in self.parts(session))]
        if self.record is not None:
            records: Records = getattr(self, "records", {})
            pieces.append(_NUMBER.pack(len(records)))
            pieces.extend(_NUMBER.pack(other) + records[other] for other in sorted(records))
        return b"".join(pieces)

    @classmethod
    def decode(cls, data: bytes, session: Session, client: int) -> Self:
        """Return the message of this kind, session and client that ``data`` is, or refuse it."""
        cls._check_header(data, session, client)
        cls._check_length(data, session, client)
        fields: dict[str, Any] = {}
        start = _HEADER.size
        for name, length in cls.parts(session).items():
            fields[name] = data[start : start + length]
            start += length
        if cls.record is not None:
            fields["records"] = cls._records(data[start + _NUMBER.size :], session, client)
        return cls(**fields)

    @classmethod
    def _named(cls, client: int) -> str:
        return f"Message {cls.__name__!r} of client {client}"

    @classmethod
    def _check_header(cls, data: bytes, session: Session, client: int) -> None:
        if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
            raise MessageRefused(f"{len(data)} bytes for client {client} are no message of secure summation.")
        _, kind, round_, attempt, named, digest = _HEADER.unpack_from(data)
        if (round_, attempt) != (session.round, session.attempt):
            raise MessageRefused(
                f"A message of round {round_}, attempt {attempt} came in {session.label}, client {client}."
            )
        if kind != cls.kind:
            known = {one.kind: one.__name__ for one in Message.__subclasses__()}
            raise MessageRefused(f"{known.get(kind, kind)!r} was sent where {cls._named(client)} is due.")
        if named != client:
            raise MessageRefused(f"A message of client {named} was sent as client {client}'s.")
        if digest != session.digest:
            raise MessageRefused(
                f"{cls._named(client)} is of another session: run, clients, identities, threshold, words and "
                "fixed-point numbers must be the same for all."
            )

    @classmethod
    def _check_length(cls, data: bytes, session: Session, client: int) -> None:
        table = _HEADER.size + sum(cls.parts(session).values())
        expected = table
        if cls.record is not None:
            expected += _NUMBER.size
            if len(data) >= expected:
                expected += _NUMBER.unpack_from(data, table)[0] * (_NUMBER.size + cls.record)
        if len(data) != expected:
            raise MessageRefused(f"{cls._named(client)} has {len(data)} bytes and should have {expected}.")

    @classmethod
    def _records(cls, table: bytes, session: Session, client: int) -> Records:
        size = _NUMBER.size + (cls.record or 0)
        rows = [table[start : start + size] for start in range(0, len(table), size)]
        ids = [_NUMBER.unpack_from(row)[0] for row in rows]
        if any(low >= high for low, high in pairwise(ids)):
            raise MessageRefused(f"{cls._named(client)} does not list clients once each and in order.")
        strangers = [other for other in ids if other not in session.identities]
        if strangers:
            raise MessageRefused(f"{cls._named(client)} lists client {strangers[0]}, who was not drawn.")
        return {other: row[_NUMBER.size :] for other, row in zip(ids, rows, strict=True)}


@dataclass(frozen=True)
class Advertisement(Message):
    """From a client: its public keys for sealing and for masks, signed."""

    kind = 1
    keys: bytes
    signature: bytes

    @classmethod
    def parts(cls, session: Session) -> dict[str, int]:
        """Return the lengths of the keys and of the signature."""
        return {"keys": 2 * KEY_BYTES, "signature": SIGNATURE_BYTES}


@dataclass(frozen=True)
class KeyList(Message):
    """To a client: the keys of all, each with its signature."""

    kind = 2
    record = 2 * KEY_BYTES + SIGNATURE_BYTES
    records: Records


@dataclass(frozen=True)
class SealedShares(Message):
    """From a client: for each other one, shares of its two secrets that only that one can open."""

    kind = 3
    record = _SEALED_BYTES
    records: Records


@dataclass(frozen=True)
class Inbox(Message):
    """To a client: what each other one sealed for it."""

    kind = 4
    record = _SEALED_BYTES
    records: Records


@dataclass(frozen=True)
class MaskedInput(Message):
    """From a client: its masked vector, and a commitment to the seed of its own mask."""

    kind = 5
    commitment: bytes
    words: bytes

    @classmethod
    def parts(cls, session: Session) -> dict[str, int]:
        """Return the lengths of the commitment and of the vector."""
        return {"commitment": KEY_BYTES, "words": 8 * session.words}


@dataclass(frozen=True)
class Survivors(Message):
    """To a client: whose masked vector arrived (the records are empty)."""

    kind = 6
    record = 0
    records: Records


@dataclass(frozen=True)
class Confirmation(Message):
    """From a client: its signature under the list of survivors."""

    kind = 7
    signature: bytes

    @classmethod
    def parts(cls, session: Session) -> dict[str, int]:
        """Return the length of the signature."""
        return {"signature": SIGNATURE_BYTES}


@dataclass(frozen=True)
class Confirmations(Message):
    """To a client: the signatures of all who confirmed."""

    kind = 8
    record = SIGNATURE_BYTES
    records: Records


@dataclass(frozen=True)
class Revealed(Message):
    """From a client: for each one a share, of its own mask (survivors) or of its mask key (the others)."""

    SELF: ClassVar[bytes] = b"b"
    PAIR: ClassVar[bytes] = b"s"
    kind = 9
    record = 1 + SHARE_BYTES
    records: Records
