"""Secure summation in one process: clients, a server, and who falls silent at which step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from fedcue.secure import keys
from fedcue.secure.client import Client
from fedcue.secure.fixed_point import FixedPoint, Words
from fedcue.secure.server import Server
from fedcue.secure.session import Session, Step

STEPS = (Step.ADVERTISE, Step.SHARE, Step.MASK, Step.CONFIRM, Step.UNMASK)


def stream(*names: object) -> Callable[[int], bytes]:
    """Return a source of bytes that are the same every time; only tests may use it."""
    count = iter(range(10**9))
    return lambda size: hashlib.shake_256(repr((names, next(count))).encode()).digest(size)


def identity(client: int) -> bytes:
    return stream("identity", client)(32)


def session(
    clients: Iterable[int] = range(5), threshold: int = 3, words: int = 8, round: int = 4, attempt: int = 0, run: str = "run"
) -> Session:  # fmt: skip
    public = {client: keys.identity_key(identity(client)) for client in clients}
    return Session(run, round, attempt, public, threshold, words, FixedPoint(16, 1000.0))


def vectors(of: Session, seed: int = 0) -> dict[int, Words]:
    generator = np.random.default_rng(seed)
    return {
        client: of.fixed_point.pack({"x": generator.uniform(-1000, 1000, of.words)})
        for client in of.participants
    }


@dataclass
class Round:
    """All parties of one session; ``silent`` names the step from which on a client no longer answers."""

    session: Session
    inputs: dict[int, Words]
    silent: dict[int, Step] = field(default_factory=dict)
    wire: list[tuple[Step, int, bytes]] = field(default_factory=list)
    restart: bool = False

    def __post_init__(self) -> None:
        self.server = Server(self.session)
        self.clients = {
            client: Client(self.session, client, identity(client), random=stream(self.session.digest, client))
            for client in self.session.participants
        }

    def answer(self, client: int, request: bytes) -> bytes:
        one = self.clients[client]
        if one.step == Step.MASK:
            return one.mask(request, self.inputs[client])
        steps = {Step.SHARE: one.share_keys, Step.CONFIRM: one.confirm, Step.UNMASK: one.unmask}
        return one.advertise() if one.step == Step.ADVERTISE else steps[one.step](request)

    def answers(self, step: Step, client: int) -> bool:
        return client not in self.silent or STEPS.index(step) < STEPS.index(self.silent[client])

    def play_step(self) -> dict[int, bytes]:
        """Let everybody who still speaks answer the present step; return the replies."""
        step = self.server.step
        requests = self.server.requests() or dict.fromkeys(self.session.participants, b"")
        replies = {
            client: self.answer(client, request)
            for client, request in requests.items()
            if self.answers(step, client)
        }
        for client, reply in replies.items():
            if self.restart:
                self.start_again()
            self.server.receive(client, reply)
            self.wire.append((step, client, reply))
        return replies

    def play(self, until: Step = Step.DONE) -> Round:
        while self.server.step != until:
            self.play_step()
            self.server.advance()
        return self

    def start_again(self) -> None:
        """Write everybody down and read everybody again, as if all processes had been killed."""
        self.server = Server.resume(self.session, self.server.written())
        self.clients = {
            client: Client.resume(self.session, client, identity(client), one.written())
            for client, one in self.clients.items()
        }

    def expected(self) -> Words:
        return self.session.fixed_point.add_up(self.inputs[client] for client in self.server.survivors)
