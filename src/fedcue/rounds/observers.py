"""Watching a run: what a progress display or a tracker is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fedcue.clients.roster import Roster


class Observer(Protocol):
    """Something that watches a run, such as a progress display."""

    def started(self, roster: Roster, folder: Path) -> None:
        """Learn what is about to run."""

    def stage(self, name: str) -> None:
        """Learn what is being done besides rounds."""

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Learn a round's metrics."""


class Silent:
    """Watches nothing."""

    def started(self, roster: Roster, folder: Path) -> None:
        """Do nothing."""

    def stage(self, name: str) -> None:
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

    def stage(self, name: str) -> None:
        """Tell each what is being done."""
        for one in self.observers:
            one.stage(name)

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Tell each a round's metrics."""
        for one in self.observers:
            one.finished_round(record)
