"""What one secure sum is about: run, round, attempt, who takes part, and how many must remain."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from fedcue.secure.fixed_point import FixedPoint
from fedcue.secure.refusals import SecureSumError

VERSION = b"fedcue secure sum 1"
_LARGEST = 2**32 - 1


class Step(StrEnum):
    """The steps of the protocol: what a client does next, or what the server waits for."""

    ADVERTISE = "advertise keys"
    SHARE = "share keys"
    MASK = "masked input"
    CONFIRM = "consistency check"
    UNMASK = "unmask"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Session:
    """One attempt at one round's sum; all who take part must hold the same one.

    ``identities`` are the Ed25519 public keys by which the clients that were drawn know each other.
    ``words`` is the length of a vector.
    """

    run: str
    round: int
    attempt: int
    identities: Mapping[int, bytes]
    threshold: int
    words: int
    fixed_point: FixedPoint = field(default_factory=FixedPoint)

    def __post_init__(self) -> None:
        if self.words < 1:
            raise SecureSumError(f"words is {self.words}. Allowed: vectors of at least one word.")
        numbers = {"round": self.round, "attempt": self.attempt, "words": self.words}
        numbers |= {f"client id {client}": client for client in self.identities}
        for name, number in numbers.items():
            if not 0 <= number <= _LARGEST:
                raise SecureSumError(f"{name} is {number}. Allowed: 0 to {_LARGEST}.")
        clients = len(self.identities)
        if clients < 2:
            raise SecureSumError(f"{clients} client(s) were drawn; a sum hides a client among at least 2.")
        if not clients < 2 * self.threshold <= 2 * clients:
            raise SecureSumError(
                f"threshold is {self.threshold} of {clients} clients. Allowed: "
                f"{clients // 2 + 1} to {clients}, more than half, so that no two sets of survivors can both "
                "be confirmed."
            )
        distinct = set(self.identities.values())
        if len(distinct) < clients or {len(key) for key in distinct} != {32}:
            raise SecureSumError("Give every client an Ed25519 public key (32 bytes) of its own as identity.")
        self.fixed_point.check_clients(clients)

    @property
    def participants(self) -> tuple[int, ...]:
        """Return the clients that were drawn, in order."""
        return tuple(sorted(self.identities))

    @property
    def label(self) -> str:
        """Return the session's name for messages to people."""
        return f"round {self.round}, attempt {self.attempt}"

    @cached_property
    def digest(self) -> bytes:
        """Return 32 bytes that stand for everything the participants must agree on."""
        run, fixed = self.run.encode(), self.fixed_point
        numbers = (len(run), self.round, self.attempt, self.threshold, self.words, fixed.fraction_bits)
        text = VERSION + struct.pack(">6Id", *numbers, fixed.limit) + run
        return hashlib.sha256(text + _table(self.identities)).digest()

    def advertised_text(self, client: int, pair: bytes) -> bytes:
        """Return what a client signs when it advertises its two public keys."""
        return VERSION + b": keys" + self.digest + client.to_bytes(4) + pair

    def transcript(self, keys: Mapping[int, bytes]) -> bytes:
        """Return 32 bytes that stand for the session and for all keys that were advertised in it."""
        return hashlib.sha256(VERSION + b": transcript" + self.digest + _table(keys)).digest()

    def survivors_text(
        self, keys: Mapping[int, bytes], shared: Iterable[int], survivors: Iterable[int]
    ) -> bytes:
        """Return what a client signs when it is told whose input arrived."""
        sets = _table(dict.fromkeys(shared, b"")) + _table(dict.fromkeys(survivors, b""))
        return VERSION + b": survivors" + self.transcript(keys) + sets


def _table(entries: Mapping[int, bytes]) -> bytes:
    """Return ids with values of one length, in order, with their number before them."""
    return len(entries).to_bytes(4) + b"".join(key.to_bytes(4) + entries[key] for key in sorted(entries))
