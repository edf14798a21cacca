"""TensorBoard: event files in the run folder; look at them with ``tensorboard --logdir runs``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from fedcue.record.track.base import Tracker


class TensorBoard(Tracker):
    """Writes events anew when a run is resumed, so that no round is there twice."""

    def open(self, name: str, folder: Path, settings: Mapping[str, Any]) -> int:
        """Begin with an empty folder: earlier rounds are logged again."""
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self.writer = SummaryWriter(str(folder))
        self.writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in settings.items()))
        return 0

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Write a point of every curve and let it be seen."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, number)
        self.writer.flush()

    def close(self, summary: Mapping[str, float]) -> None:
        """Write the final numbers as text."""
        if summary:
            self.writer.add_text("summary", "\n".join(f"    {key} = {v:g}" for key, v in summary.items()))
        self.writer.close()
