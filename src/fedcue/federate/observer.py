"""Watching a run: what a progress display or a tracker is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fedcue.federate.roster import Roster


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
