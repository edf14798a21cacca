"""Telling trackers what a run does, so that they can neither change it nor end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from fedcue.clients.roster import Roster
from fedcue.config.layers import dump
from fedcue.config.words import flat
from fedcue.record.track.base import Tracker, tracker
from fedcue.rounds.observers import Silent

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
        """Pass on the round's numbers; a resumed run tells of its earlier rounds again."""
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
