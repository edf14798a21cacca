"""The one reader of run folders, finished or not; it trusts nothing that they hold."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedcue.errors import RunFolderError
from fedcue.foreign import STRANGE, read_toml
from fedcue.record.folder import read_metrics
from fedcue.report.run_files import Array, Client, client_rows, is_written, json_object, last_words, tensors

State = Literal["finished", "running", "stopped", "damaged"]


@dataclass(frozen=True)
class RunRecord:
    """What one run folder holds; ``problem`` says what could not be read."""

    path: Path
    state: State
    config: Mapping[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    summary: Mapping[str, Any] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    model: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(section(self.config, "method").get("name", "unknown"))

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.config.get("seed", 0))

    @property
    def total_rounds(self) -> int:
        """Rounds the run is to have in the end."""
        return int(self.config.get("rounds", 0))

    @property
    def classes(self) -> list[str]:
        """Names of the classes; numbers if the run has not written them yet."""
        names = self.model.get("classes")
        if isinstance(names, list):
            return [str(name) for name in names]
        return [str(number) for number in range(self.class_counts.shape[1])]

    @property
    def class_counts(self) -> Array:
        """Training images by client and class ``[clients, C]``; empty if not written yet."""
        counts = self.analysis.get("train_class_counts")
        return counts if counts is not None and counts.ndim == 2 else np.zeros((0, 0), int)

    @cached_property
    def analysis(self) -> dict[str, Array]:
        """Tensors of ``analysis.safetensors``; none if the run is not finished."""
        return tensors(self.path / "analysis.safetensors")

    @cached_property
    def snapshots(self) -> list[tuple[int, dict[str, Array]]]:
        """Tensors kept of some rounds, by round."""
        files = sorted((self.path / "snapshots").glob("round-*.safetensors"))
        numbered = [(path.stem.removeprefix("round-"), path) for path in files]
        return [(int(number), tensors(path)) for number, path in numbered if number.isdigit()]

    @cached_property
    def trained(self) -> dict[str, Array]:
        """Tensors of ``model.safetensors``."""
        return tensors(self.path / "model.safetensors")

    @property
    def domains(self) -> dict[str, float | None]:
        """Mean accuracy of each domain's clients; none if there are no domains."""
        found = section(self.summary, "domains")
        return {name: number(section(found, name).get("client_mean_accuracy")) for name in found}

    @property
    def tested_again(self) -> bool:
        """Whether ``fedcue evaluate`` tested its end again: when it got there is then unknown."""
        return bool(self.rounds) and "tested_again" in self.summary

    @property
    def tested_every(self) -> int:
        """Rounds between two tests; all of them where only the last is tested."""
        every = number(section(self.config, "evaluation").get("every"))
        return self.total_rounds if every == 0 else int(every or 1)

    @property
    def untested(self) -> int:
        """Clients that could not be tested and are not in the accuracies."""
        clients = self.summary.get("untested")
        return len(clients) if isinstance(clients, list) else 0

    def last(self, name: str) -> float | None:
        """Return a metric of the summary or, while the run goes on, of the newest round with it."""
        if self.summary:
            return number(self.summary.get(name))
        found = (number(record.get(name)) for record in reversed(self.rounds))
        return next((value for value in found if value is not None), None)


def find_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """Read every run in the given run folders and in the folders below the given ones."""
    found: dict[Path, RunRecord] = {}
    for path in paths:
        if not path.is_dir():
            raise RunFolderError(f"{path} is not a folder. Give run folders or a folder that holds them.")
        for folder in run_folders(path):
            found.setdefault(folder.resolve(), read_run(folder))
    return list(found.values())


def need_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """Read the runs or say that there are none."""
    paths = list(paths)
    runs = find_runs(paths)
    if not runs:
        raise RunFolderError(
            f"No run in {', '.join(map(str, paths))}: no config.toml there. Give the folder of a run or a "
            "folder that holds runs, such as the --out of fedcue run."
        )
    return runs


def run_folders(path: Path) -> Iterator[Path]:
    """Yield the folder itself or those below it that hold a ``config.toml``, in order of their names."""
    for folder, below, files in os.walk(path):
        below.sort()
        if "config.toml" in files:
            below.clear()
            yield Path(folder)


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; damage is described in ``problem``, never raised."""
    try:
        record = _read(folder)
        _ = (record.seed, record.total_rounds, record.analysis, record.snapshots)
        return record
    except (RunFolderError, *STRANGE) as error:
        return RunRecord(folder, "damaged", problem=str(error))


def finished_run(folder: Path) -> RunRecord:
    """Read the numbers of a finished run; refuse a folder in which one is missing or damaged."""
    try:
        record = _read(folder)
        _check_numbers(record)
        return record
    except (RunFolderError, *STRANGE) as error:
        raise RunFolderError(
            f"{folder} is not a finished run that can be read ({type(error).__name__}: {error}). "
            "Delete the folder and run it again."
        ) from error


def _read(folder: Path) -> RunRecord:
    config = read_toml(folder / "config.toml")
    summary = json_object(folder / "summary.json")
    state: State = "finished" if summary else "running" if is_written(folder) else "stopped"
    return RunRecord(
        folder, state, config, read_metrics(folder), summary,
        client_rows(folder / "clients.csv"), json_object(folder / "model.json"), last_words(folder),
    )  # fmt: skip


def _check_numbers(record: RunRecord) -> None:
    """Raise where a number of the summary or of a round is missing or not a number."""
    int(record.config["seed"])
    for name in ("mean_accuracy", "worst_accuracy", "heldout_mean_accuracy", "seconds"):
        _check_number(record.summary[name], name, missing=True)
    _check_number(record.summary["warm_up_upload_floats"], "warm_up_upload_floats")
    for line in record.rounds:
        if not isinstance(line["clients"], list):
            raise ValueError(f"clients={line['clients']!r} is not a list")
        for name in ("round", "upload_floats", "download_floats", "upload_bytes", "download_bytes"):
            _check_number(line[name], name)


def _check_number(value: Any, name: str, missing: bool = False) -> None:
    if number(value) is None and not (missing and value is None):
        raise ValueError(f"{name}={value!r} is not a number")


def section(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table within a table, an empty one if there is none."""
    part = whole.get(name)
    return part if isinstance(part, Mapping) else {}


def number(value: Any) -> float | None:
    """Return a finite number or nothing."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON's integers have any length
        return None
