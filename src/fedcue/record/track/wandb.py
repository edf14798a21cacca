"""Weights & Biases: a run in the project ``fedcue``; without a network, ``WANDB_MODE=offline``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from fedcue.record.track.base import Tracker, read_note

_PROJECT = "fedcue"


class WeightsAndBiases(Tracker):
    """Goes on with the run noted in the folder, from the round noted there."""

    def open(self, name: str, folder: Path, settings: Mapping[str, Any]) -> int:
        """Begin or go on; ``run.txt`` holds the run's id and the last round sent."""
        self.note = folder / "run.txt"
        known, _, number = read_note(self.note).partition(" ")
        self.run = wandb.init(
            project=_PROJECT, name=name, id=known or None, resume="allow" if known else None,
            dir=str(folder), config=dict(settings),
        )  # fmt: skip
        return int(number or 0)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Note the round, then send it: after a crash between the two, a round is missing, never double."""
        self.note.write_text(f"{self.run.id} {number}\n", encoding="utf-8")
        self.run.log(dict(values), step=number)

    def close(self, summary: Mapping[str, float]) -> None:
        """Send the final numbers and wait until everything is written."""
        self.run.summary.update({f"final/{key}": value for key, value in summary.items()})
        self.run.finish(exit_code=0 if summary else 1)
