"""A run whose clients are all simulated: what passes between it and the processes that do their work.

Only the named tensors that a real network would carry cross between processes, as safetensors bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain, islice
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from fedcue.clients.federation import Federation
from fedcue.clients.host import Host, Prediction
from fedcue.clients.together import free_memory, together, train_together
from fedcue.errors import SUFFERED, Interrupted
from fedcue.evaluate.accuracy import Accuracies
from fedcue.evaluate.analysis import analyse
from fedcue.rounds.engine import Failure, Insight
from fedcue.rounds.observers import Silent, Stage
from fedcue.rounds.workers import begin_visit
from fedcue.types import ClientMemory, Download, ServerState, Update, pack, unpack

_host: Host | None = None
"""The clients at work in this process, inherited by forked ones."""

Job = tuple[Any, ...]
"""The clients whose step it is, then whatever else the step takes."""

Step = Callable[..., list[Any]]
"""What clients are asked to do: it returns what came of each of them."""

_TestJob = tuple[Sequence[int], Download, ClientMemory, bool]


class Simulator(ABC):
    """Lets clients work in order; where they do is up to those derived from it (``_map``)."""

    workers: int

    def __init__(self, federation: Federation, tell: Stage | None = None) -> None:
        self.tell = tell or Silent().stage
        self.federation, self.roster = federation, federation.roster
        self._stack = ExitStack()
        """What is undone at the end."""
        own_gpu = self.roster.config.engine.name == "local"  # not that of another machine
        free = free_memory(federation.model.device) if own_gpu else None
        self.together = together(self.roster, free)

    def __enter__(self) -> Self:
        """Return the engine; leaving the block ends its processes and undoes what it set up."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End its processes, leave a cluster, give torch its threads back."""
        self._stack.close()

    def warm_up(self, clients: Iterable[int]) -> Iterator[Update | Failure]:
        """Yield the clients' warm-up replies, if the method has any."""
        for reply in self._map(warm_up, (([client],) for client in clients)):
            yield reply if isinstance(reply, Failure) else _unpacked(reply)

    def train(
        self, jobs: Iterable[tuple[Download, ClientMemory]]
    ) -> Iterator[tuple[Update, ClientMemory] | Failure]:
        """Train clients; yield updates and memories, or failures, in the order of ``jobs``."""
        packed = ((_packed(download), _packed(memory)) for download, memory in jobs)
        groups = iter(lambda: list(islice(packed, self.together)), [])
        for outcome in self._map(train, (([d.client for (d, _), _ in group], group) for group in groups)):
            if isinstance(outcome, Failure):
                yield outcome
            else:
                update, memory = outcome
                yield _unpacked(update), _unpacked(memory)

    def test(self, jobs: Iterable[_TestJob]) -> Iterator[Prediction | Failure]:
        """Test groups of clients; yield predictions in the order of ``jobs``, and who failed."""
        return self._map(test, ((c, _packed(d), _packed(memory), final) for c, d, memory, final in jobs))

    def evaluate(self, state: ServerState, memories: Mapping[int, ClientMemory], final: bool) -> Accuracies:
        """Test the listed clients that the method can serve."""
        method, seed, sizes = self.roster.method, self.roster.config.seed, self.roster.sizes
        groups = self.federation.test_groups()
        jobs = (
            (
                group,
                Download(group[0], state.round, method.download(state, group[0], sizes, seed)),
                memories.get(group[0], ClientMemory()),
                final,
            )
            for group in groups
        )
        self.tell("testing", 0, len(groups))
        outcomes = []
        for outcome in self.test(jobs):
            outcomes.append(outcome)
            self.tell("testing", len(outcomes), max(len(groups), len(outcomes)))
        missing = {outcome.client: outcome.reason for outcome in outcomes if isinstance(outcome, Failure)}
        parts = [outcome for outcome in outcomes if isinstance(outcome, Prediction)]
        if not parts:
            nothing = np.zeros(len(self.roster), dtype=np.int64)
            return Accuracies(self.roster, nothing, nothing, missing=missing).checked()
        together = [np.concatenate([getattr(p, name) for p in parts]) for name in Prediction.__annotations__]
        return Accuracies.of(self.roster, Prediction(*together), missing).checked()

    def insight(
        self, state: ServerState, memories: Mapping[int, ClientMemory], accuracies: Accuracies
    ) -> Insight:
        """Return what a simulation knows of its clients at the end."""
        federation = self.federation
        listed = self.roster.listed.tolist()
        return Insight(
            class_priors={client: federation.host.client(client).class_priors for client in listed},
            concentration=federation.host.concentration,
            memories=memories,
            analysis=analyse(federation, state, memories, accuracies, self.tell),
            numbers={"frozen_cache": federation.frozen_level, "bad_images": len(federation.pixels.bad)},
        )

    def news(self) -> dict[str, Any]:
        """Return nothing: there is no other machine to report on."""
        return {}

    def _map(self, step: Step, jobs: Iterable[Job]) -> Iterator[Any]:
        """Yield what came of each client, in the order of ``jobs``."""
        return chain.from_iterable(self._outcomes(step, jobs))

    @abstractmethod
    def _outcomes(self, step: Step, jobs: Iterable[Job]) -> Iterator[list[Any]]:
        """Yield what a step of this module makes of each job, in the order of ``jobs``."""


def let_work(host: Host) -> None:
    """Let clients work in this process and in those forked from it."""
    global _host
    _host = host


_Message = TypeVar("_Message", Download, Update, ClientMemory)
_Packed = tuple[_Message, bytes]
"""A message without its tensors, and these as the bytes of a safetensors file."""
_Trained = tuple[_Packed[Update], _Packed[ClientMemory]]


def _packed(message: _Message) -> _Packed[_Message]:
    return replace(message, tensors={}), pack(message.tensors)


def _unpacked(packed: _Packed[_Message]) -> _Message:
    message, tensors = packed
    return replace(message, tensors=unpack(tensors))


@contextmanager
def at_work(step: str, clients: Sequence[int], finished_rounds: int | None = None) -> Iterator[Host]:
    """Yield the clients at work; a bug's traceback names the client, the round and the step."""
    assert _host is not None, "let_work comes first"
    begin_visit(clients)
    try:
        yield _host
    except (*SUFFERED, Interrupted):
        raise
    except Exception as error:
        when = "" if finished_rounds is None else f" in round {finished_rounds + 1}"
        error.add_note(f"This is a bug, not a failure of the client: {step} of client {clients[0]}{when}.")
        raise


def warm_up(clients: Sequence[int]) -> list[_Packed[Update] | Failure]:
    """Ask a client for its reply before round 0, if its method has one."""
    try:
        with at_work("warm up", clients) as host:
            reply = host.warm_up(clients[0])
    except SUFFERED as error:
        return [Failure(clients[0], str(error))]
    return [] if reply is None else [_packed(reply)]


def train(
    clients: Sequence[int], jobs: Sequence[tuple[_Packed[Download], _Packed[ClientMemory]]]
) -> list[_Trained | Failure]:
    """Train clients, several of them in one batch; if one of them stops that, one by one."""
    visits = [(_unpacked(download), _unpacked(memory)) for download, memory in jobs]
    alone = len(clients) == 1
    step = "training" if alone else f"training with engine.together={len(clients)}"
    try:
        with at_work(step, clients, visits[0][0].round) as host:
            outcomes = [host.train(*visits[0])] if alone else list(train_together(host, visits))
    except SUFFERED as error:
        if alone:
            return [Failure(clients[0], str(error))]
        one_by_one = (train([client], [job]) for client, job in zip(clients, jobs, strict=True))
        return list(chain.from_iterable(one_by_one))
    return [
        Failure(client, str(outcome))
        if isinstance(outcome, Exception)
        else (_packed(outcome[0]), _packed(outcome[1]))
        for client, outcome in zip(clients, outcomes, strict=True)
    ]


def test(
    clients: Sequence[int], packed: _Packed[Download], memory: _Packed[ClientMemory], final: bool
) -> list[Prediction | Failure]:
    """Test clients together or, if one of them fails, one by one."""
    download = _unpacked(packed)
    try:
        with at_work("test", clients, download.round) as host:
            return [host.test(clients, download, _unpacked(memory), final)]
    except SUFFERED as error:
        if len(clients) == 1:
            return [Failure(clients[0], str(error))]
    return [outcome for client in clients for outcome in test([client], packed, memory, final)]


STEPS: Mapping[str, Step] = {step.__name__: step for step in (warm_up, train, test)}
"""What clients can be asked to do, by name."""
