"""Watching a run: what a progress display or a tracker is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedcue.clients.roster import Roster

Step = TypeVar("Step")

TRAINING = "training"
"""The stage that every round has."""

Stage = Callable[[str, int, int], None]
"""Is told what is being done besides rounds, how many steps of it are done and how many there are (or 0)."""


class Observer(Protocol):
    """Something that watches a run, such as a progress display."""

    def started(self, roster: Roster, folder: Path) -> None:
        """Learn what is about to run."""

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """Learn what is being done besides rounds, and how far it is."""

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Learn a round's metrics."""


class Silent:
    """Watches nothing."""

    def started(self, roster: Roster, folder: Path) -> None:
        """Do nothing."""

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """Do nothing."""

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Do nothing."""


class Several:
    """Passes everything on to several observers."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def started(self, roster: Roster, folder: Path) -> None:
        """Tell each what is about to run."""
        for one in self.observers:
            one.started(roster, folder)

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """Tell each what is being done."""
        for one in self.observers:
            one.stage(name, done, total)

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Tell each a round's metrics."""
        for one in self.observers:
            one.finished_round(record)


def telling(observer: Observer, stage: str, total: int, steps: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps of a stage, and tell how many are done."""
    observer.stage(stage, 0, total)
    for done, step in enumerate(steps, 1):
        yield step
        observer.stage(stage, done, total)
