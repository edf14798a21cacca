"""Watching a run: progress displays and trackers. None can change it or end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from fedcue.clients.roster import Roster
from fedcue.config.layers import dump
from fedcue.config.words import flat
from fedcue.record.track.base import Tracker, tracker

Step = TypeVar("Step")

TRAINING = "training"
"""The stage that every round has."""

Stage = Callable[[str, int, int], None]
"""Called with what is being done besides rounds, the steps done, and how many there are (or 0)."""


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


log = logging.getLogger(__name__)


class Tracking(Silent):
    """An observer that passes each round on to the trackers that do not have it yet."""

    def __init__(self, names: Iterable[str]) -> None:
        self.waiting = {name: tracker(name) for name in names}
        self.active: dict[str, tuple[Tracker, int]] = {}
        self.summary: dict[str, float] = {}

    def __enter__(self) -> Tracking:
        """Return the observer; leaving the block closes the trackers."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the trackers write out what they have."""
        for name, (one, _) in list(self.active.items()):
            self._try(name, partial(one.close, self.summary))

    def started(self, roster: Roster, folder: Path) -> None:
        """Begin, or go on with, the run in every tracker."""
        settings = flat(dump(roster.config))
        for name, one in self.waiting.items():
            place = folder / "log" / name
            place.mkdir(parents=True, exist_ok=True)
            held = self._try(name, partial(one.open, folder.name, place, settings))
            if held is not None:
                self.active[name] = one, held

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Pass on the round's numbers; a resumed run repeats its earlier rounds."""
        number, values = record["round"], numbers(record)
        for name, (one, held) in list(self.active.items()):
            if number > held:
                self._try(name, partial(one.log, number, values))

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Keep the final numbers for the end."""
        self.summary = numbers(summary)

    def _try(self, name: str, step: Callable[[], Any]) -> Any:
        """Do a tracker's step; if it fails, go on without the tracker."""
        try:
            return step()
        except Exception as error:  # a tracker's trouble, whatever it is, must not end the run
            self.active.pop(name, None)
            log.warning("log=%s stopped (%s); the run goes on and its folder holds every round.", name, error)
            return None


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return what of a record can be drawn as a curve."""
    return {
        key: float(value)
        for key, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key != "round"
    }
