"""What travels in a round, counted from the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from fedcue.federate.engine import Engine, Failure
from fedcue.federate.transport import Transport
from fedcue.methods.base import Method
from fedcue.types import ClientMemory, Download, ServerState, Update, count_bytes, count_floats


@dataclass
class Traffic:
    """What travelled, counted from the tensors themselves."""

    upload_floats: int = 0
    download_floats: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0

    def down(self, download: Download) -> None:
        """Count a download."""
        self.download_floats += count_floats(download.tensors)
        self.download_bytes += count_bytes(download.tensors)

    def up(self, update: Update) -> None:
        """Count an update."""
        self.upload_floats += count_floats(update.tensors)
        self.upload_bytes += count_bytes(update.tensors)


@dataclass
class Exchange:
    """One attempt at a round: downloads out, updates in, what travelled and who failed."""

    method: Method
    engine: Engine
    transport: Transport
    known: Mapping[int, ClientMemory]
    seed: int
    traffic: Traffic = field(default_factory=Traffic)
    losses: list[float | None] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    memories: dict[int, ClientMemory] = field(default_factory=dict)

    def run(self, state: ServerState, clients: Sequence[int]) -> ServerState | None:
        """Return the state after the round, or nothing if no client answered."""
        jobs = ((self._send(state, client), self._memory(client)) for client in clients)
        updates = self._updates(jobs, state)
        first = next(updates, None)
        if first is None:
            return None
        combine = self.engine.roster.protection.combine(state.tensors, state.round)
        return self.method.aggregate(state, chain([first], updates), combine)

    def _send(self, state: ServerState, client: int) -> Download:
        message, received = self.transport.download(self.method.download(state, client, self.seed))
        self.traffic.down(message)
        return received

    def _memory(self, client: int) -> ClientMemory:
        return self.known.get(client, ClientMemory())

    def _updates(self, jobs: Iterable[tuple[Download, ClientMemory]], state: ServerState) -> Iterator[Update]:
        for outcome in self.engine.train(jobs):
            if isinstance(outcome, Failure):
                self.failures.append(outcome)
                continue
            update, memory = outcome
            if self.method.keeps_memory:
                self.memories[update.client] = memory
            self.losses.append(update.loss)
            message, received = self.transport.upload(update, state.tensors)
            self.traffic.up(message)
            yield received

    def metrics(self) -> dict[str, Any]:
        """Return the mean training loss, if clients tell theirs, and what travelled."""
        told = [loss for loss in self.losses if loss is not None]
        return {"train_loss": sum(told) / len(told) if told else None, **vars(self.traffic)}
