"""What is written down of one round, and when rounds have stopped getting better."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcue.evaluate.accuracy import Accuracies
from fedcue.evaluate.curve import on_curve
from fedcue.rounds.engine import Failure
from fedcue.train.settings import Training
from fedcue.train.sgd import rate
from fedcue.types import ClientMemory, Update


@dataclass
class Patience:
    """Watches the evaluated rounds of a run; says when as many as its limit were no better than the best."""

    limit: int | None
    best: tuple[float, int] | None = None
    """The best mean accuracy so far, and the round that had it first."""
    since: int = 0

    def add(self, *records: Mapping[str, Any]) -> None:
        """Take evaluated rounds in; others change nothing."""
        for record in records:
            accuracy = on_curve(record)
            if accuracy is None:
                continue
            better = self.best is None or accuracy > self.best[0]
            self.best = (accuracy, record["round"]) if better else self.best
            self.since = 0 if better else self.since + 1

    @property
    def over(self) -> str:
        """Why the run may end; empty while it should go on."""
        if self.limit is None or self.since < self.limit or self.best is None:
            return ""
        accuracy, round_ = self.best
        return (
            f"{self.since} evaluated rounds were no better on validation images than round {round_} with "
            f"{accuracy:.1%} (evaluation.patience={self.limit})."
        )


def best_validation(rounds: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the round with the highest mean accuracy on validation images, if any was evaluated."""
    watching = Patience(None)
    watching.add(*rounds)
    if watching.best is None:
        return None
    accuracy, round_ = watching.best
    return {"round": round_, "mean_accuracy": accuracy}


@dataclass
class RoundRecord:
    """The clients of a round, what they reported and who failed; a redrawn round starts over."""

    number: int
    failures: list[dict[str, Any]]
    """Everyone who failed, in whatever step and attempt."""
    clients: list[int] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    memories: dict[int, ClientMemory] = field(default_factory=dict)
    failed: list[Failure] = field(default_factory=list)
    """Who failed in this attempt."""
    accuracies: dict[str, Any] = field(default_factory=dict)
    attempt: int = 0
    started: float = field(default_factory=time.perf_counter)

    def draw(self, attempt: int, clients: Sequence[int]) -> None:
        """Begin with the clients of an attempt."""
        self.attempt, self.clients = attempt, list(clients)
        self.losses, self.memories, self.failed = [], {}, []

    def update(self, update: Update, memory: ClientMemory) -> Update:
        """Note a client's loss and what it remembers; return its update."""
        self.losses.append(update.loss)
        self.memories[update.client] = memory
        return update

    def failure(self, failure: Failure) -> None:
        """Note a client that failed."""
        self.failed.append(failure)
        self.failures.append({"step": "train", "attempt": self.attempt, **vars(failure)})

    def tested(self, accuracies: Accuracies) -> dict[str, Any]:
        """Note accuracies and who could not be tested; return them with the round's number."""
        self.accuracies = accuracies.metrics()
        self.failures += [{"step": "evaluate", **failure} for failure in accuracies.untested()]
        return {"round": self.number, **self.accuracies}

    def line(
        self, training: Training, traffic: Mapping[str, int], spent: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return all of it as one line of the metrics, with what travelled and the privacy spent."""
        told = [loss for loss in self.losses if loss is not None]
        return {
            "round": self.number,
            "lr": rate(training, "prompts", self.number - 1),
            "head_lr": rate(training, "head", self.number - 1),
            "clients": self.clients,
            "train_loss": sum(told) / len(told) if told else None,
            **traffic,
            **spent,
            **self.accuracies,
            **({"failures": self.failures} if self.failures else {}),
            **({"attempts": self.attempt + 1} if self.attempt else {}),
            "seconds": time.perf_counter() - self.started,
        }
