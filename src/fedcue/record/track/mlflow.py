"""MLflow: a run in the experiment ``fedcue`` of the server that ``MLFLOW_TRACKING_URI`` names."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from fedcue.record.track.base import Tracker, read_note

_EXPERIMENT = "fedcue"
_EVERY_ROUND = "upload_bytes"
"""A number every round has, by which the last one logged is found."""


class MLflow(Tracker):
    """Goes on with the run noted in the folder and asks the server which rounds it has."""

    def open(self, name: str, folder: Path, settings: Mapping[str, Any]) -> int:
        """Create the run, or find it by the id in ``run-id.txt``."""
        self.client = MlflowClient()
        note = folder / "run-id.txt"
        self.run = read_note(note)
        if self.run:
            self.client.update_run(self.run, status="RUNNING")
            return max(
                (int(m.step) for m in self.client.get_metric_history(self.run, _EVERY_ROUND)), default=0
            )
        self.run = self.client.create_run(self._experiment(), run_name=name).info.run_id
        params = [Param(key, str(value)[:500]) for key, value in settings.items()]
        for start in range(0, len(params), 100):  # as many as the server takes at once
            self.client.log_batch(self.run, params=params[start : start + 100])
        note.write_text(f"{self.run}\n", encoding="utf-8")
        return 0

    def _experiment(self) -> str:
        try:
            return str(self.client.create_experiment(_EXPERIMENT))
        except MlflowException:
            found = self.client.get_experiment_by_name(_EXPERIMENT)
            if found is None:
                raise
            return str(found.experiment_id)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Send a point of every curve at once."""
        now = int(time.time() * 1000)
        self.client.log_batch(self.run, metrics=[Metric(key, v, now, number) for key, v in values.items()])

    def close(self, summary: Mapping[str, float]) -> None:
        """Send the final numbers and say whether the run finished."""
        if summary:
            now = int(time.time() * 1000)
            metrics = [Metric(f"final/{key}", value, now, 0) for key, value in summary.items()]
            self.client.log_batch(self.run, metrics=metrics)
        self.client.set_terminated(self.run, "FINISHED" if summary else "KILLED")
