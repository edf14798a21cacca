"""The server's half of secure sums over a network, written down after every step.

A sum that was begun goes on when the same clients are asked again: after a restart, or when too few of
them could be reached to take the masks away. What was added up already is not added up again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedcue.errors import RunFolderError
from fedcue.flower.expected import ExpectedMessage
from fedcue.flower.messages import Member, Outcome, read_session, write_session
from fedcue.record.files import read_json, write_bytes
from fedcue.rounds.engine import Failure
from fedcue.secure.fixed_point import FixedPoint, Shapes, split
from fedcue.secure.refusals import SecureSumError
from fedcue.secure.server import Server
from fedcue.secure.session import Session, Step


@dataclass
class RunningSum:
    """One attempt at a sum: who was asked, which step it has reached, and why clients are not in it."""

    path: Path
    asked: tuple[int, ...]
    server: Server
    failures: dict[int, str] = field(default_factory=dict)
    reason: str = ""
    """Why there is no sum."""

    @property
    def session(self) -> Session:
        """What all participants agree on."""
        return self.server.session

    @property
    def expected(self) -> ExpectedMessage:
        """What the clients' messages must be."""
        return ExpectedMessage(self.server)

    @property
    def goes_on(self) -> bool:
        """Whether there is another step."""
        return not self.reason and self.server.step != Step.DONE

    def advance(self) -> None:
        """End a step with those who answered."""
        server = self.server
        try:
            if server.step == Step.UNMASK and server.lacking:
                self.reason = f"{server.lacking} clients more must answer before the masks can be taken away"
            else:
                server.advance()
        except SecureSumError as error:
            self.reason = str(error)
        self.save()

    def save(self) -> None:
        """Write the state to disk."""
        failures = {str(client): reason for client, reason in self.failures.items()}
        session = json.loads(write_session(self.session))
        state = {
            "asked": self.asked,
            "failures": failures,
            "session": session,
            "server": self.server.written(),
        }
        write_bytes(self.path, json.dumps(state).encode())

    def outcomes(self, shapes: Shapes, members: Mapping[int, Member]) -> list[Outcome | Failure]:
        """Return what stands for each client asked, in order.

        The sum is all there is: the first survivor is given it, the others zeros. Those who fell silent
        after their words had come are survivors too.
        """
        survivors = self.server.survivors if self.server.step == Step.DONE else ()
        nothing = {name: _zeros(shape) for name, shape in shapes.items()}
        parts = dict.fromkeys(survivors, nothing)
        if survivors:
            total = split(self.server.total, shapes)
            parts[survivors[0]] = {name: torch.from_numpy(words) for name, words in total.items()}
        return [
            Outcome(client, parts[client], members[client].train_size)
            if client in parts
            else Failure(client, self.failures.get(client) or self.reason or "its node is not connected")
            for client in self.asked
        ]


@dataclass(frozen=True)
class SumStore:
    """The sums of a run's present round, in a folder of the server."""

    folder: Path
    run: str

    def find(self, round_: int, asked: Sequence[int]) -> RunningSum | None:
        """Return the sum over these clients that was begun and can go on, if there is one."""
        for path in reversed(self._files(round_)):
            found = self._read(path)
            if set(found.asked) == set(asked) and found.server.step not in (Step.ADVERTISE, Step.FAILED):
                found.asked = tuple(asked)
                return found
        return None

    def begin(
        self,
        round_: int,
        asked: Iterable[int],
        keys: Mapping[int, bytes],
        threshold: int,
        words: int,
        fixed: FixedPoint,
    ) -> RunningSum:
        """Return a new attempt at a round's sum; those of earlier rounds are forgotten."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        here = self._files(round_)
        for path in set(self.folder.glob("*.json")) - set(here):
            path.unlink()
        attempt = int(here[-1].stem.split("-")[1]) + 1 if here else 0
        path = self.folder / f"{round_:06d}-{attempt:06d}.json"
        session = Session(self.run, round_, attempt, keys, threshold, words, fixed)
        begun = RunningSum(path, tuple(asked), Server(session))
        begun.save()
        return begun

    def _files(self, round_: int) -> list[Path]:
        return sorted(self.folder.glob(f"{round_:06d}-*.json"))

    def _read(self, path: Path) -> RunningSum:
        try:
            found: Mapping[str, object] = read_json(path)
            session = read_session(json.dumps(found["session"]), self.run)
            asked = tuple(int(client) for client in found["asked"])  # type: ignore[attr-defined]
            failures = {int(client): str(why) for client, why in found["failures"].items()}  # type: ignore[attr-defined]
            return RunningSum(path, asked, Server.resume(session, str(found["server"])), failures)
        except (KeyError, TypeError, ValueError, AttributeError, SecureSumError) as error:
            raise RunFolderError(f"{path} is damaged. Put it back, or start a new run.") from error


def _zeros(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros((), dtype=torch.uint64).expand(shape)
