"""What a tracker is, and how one is found by name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcue.errors import ConfigError

_TRACKERS = {
    "tensorboard": "fedcue.record.track.tensorboard:TensorBoard",
    "mlflow": "fedcue.record.track.mlflow:MLflow",
    "wandb": "fedcue.record.track.wandb:WeightsAndBiases",
}
"""Where each tracker is; its extra has the same name."""


class Tracker(ABC):
    """Something that shows runs elsewhere. Making one imports its library."""

    @abstractmethod
    def open(self, name: str, folder: Path, settings: Mapping[str, Any]) -> int:
        """Begin the run, or go on with it; return the last round the tracker already holds.

        ``folder`` is the tracker's to keep notes in.
        """

    @abstractmethod
    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Take a round's numbers."""

    @abstractmethod
    def close(self, summary: Mapping[str, float]) -> None:
        """Take the final numbers (none if the run did not finish) and write everything out."""


def tracker(name: str) -> Tracker:
    """Return the tracker called ``name`` or say what to install."""
    module, _, kind = _TRACKERS[name].partition(":")
    try:
        made: Tracker = getattr(importlib.import_module(module), kind)()
    except ImportError as error:
        raise ConfigError(
            f"log={name} needs its extra, and {error.name or error} is missing: pip install 'fedcue[{name}]'."
        ) from error
    return made


def read_note(path: Path) -> str:
    """Return what an earlier part of the run noted here, or nothing."""
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
