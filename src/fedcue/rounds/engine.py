"""What a run asks of the engine that does the clients' work: local processes, or a real network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcue.clients.priors import UNKNOWN
from fedcue.clients.roster import Roster
from fedcue.errors import FedcueError
from fedcue.evaluate.accuracy import Accuracies, Adaptation
from fedcue.types import ClientMemory, Download, ServerState, Tensors, Update


@dataclass(frozen=True)
class Failure:
    """A client that sent nothing usable, and why."""

    client: int
    reason: str


def reasons(failures: Sequence[Failure]) -> str:
    """Return the reasons of the first failures in brackets, if there are any."""
    first = "; ".join(f"client {failure.client}: {failure.reason}" for failure in failures[:3])
    return f" ({first})" if first else ""


def checked(state: ServerState) -> ServerState:
    """Return the state, or raise an error that names the tensors that are not finite."""
    bad = [name for name, t in state.tensors.items() if t.is_floating_point() and not t.isfinite().all()]
    if bad:
        raise FedcueError(
            f"After round {state.round} the model is not finite: {', '.join(sorted(bad))}. Lower the "
            "learning rates, or leave out a client that sends what it should not, then resume from the "
            "round before."
        )
    return state


@dataclass(frozen=True)
class Insight:
    """What is known only where the clients' data can be seen; a deployed server leaves all of it empty."""

    class_priors: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    concentration: float = UNKNOWN
    memories: Mapping[int, ClientMemory] = field(default_factory=dict)
    analysis: Tensors = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """Lets clients work and returns what they send back.

    A client's memory may be its tensors, or just what is needed to find them where they are kept.
    """

    roster: Roster
    workers: int

    def warm_up(self, clients: Iterable[int]) -> Iterator[Update | Failure]:
        """Yield the clients' replies before round 0, if the method asks for any."""

    def train(
        self, jobs: Iterable[tuple[Download, ClientMemory]]
    ) -> Iterator[tuple[Update, ClientMemory] | Failure]:
        """Train clients; yield updates and memories, or failures, in the order of ``jobs``."""

    def evaluate(self, state: ServerState, memories: Mapping[int, ClientMemory], final: bool) -> Accuracies:
        """Test the listed clients that the method can serve."""

    def insight(
        self, state: ServerState, memories: Mapping[int, ClientMemory], accuracies: Accuracies
    ) -> Insight:
        """Return what is known of the clients at the end of a run."""

    def news(self) -> dict[str, Any]:
        """Return what a progress display may say of the machines at work, after a round."""


def tested(
    engine: Engine, state: ServerState, memories: Mapping[int, ClientMemory], last: bool
) -> Accuracies:
    """Test all clients; where they train for the last test alone, repeat it without and count their work."""
    roster = engine.roster
    found = engine.evaluate(state, memories, final=last)
    if not (last and roster.method.adapts()):
        return found
    images = int(roster.train_sizes[found.total > 0].sum()) * roster.config.training.epochs
    before = engine.evaluate(state, memories, final=False)
    return replace(found, adaptation=Adaptation(before, images))
