"""Reading run folders, finished or not, without trusting what they hold."""

from __future__ import annotations

import csv
import json
import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedcue.errors import RunFolderError
from fedcue.record.folder import read_metrics

Array = NDArray[Any]
State = Literal["finished", "running", "stopped", "damaged"]


@dataclass(frozen=True)
class Client:
    """One line of ``clients.csv``; tested on test images or, in tuning, on validation images."""

    id: int
    name: str
    domain: str
    heldout: bool
    train_size: int
    test_size: int
    accuracy: float | None


@dataclass(frozen=True)
class RunRecord:
    """What one run folder tells; ``problem`` says what could not be read."""

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
        return _tensors(self.path / "analysis.safetensors")

    @cached_property
    def snapshots(self) -> list[tuple[int, dict[str, Array]]]:
        """Tensors kept of some rounds, by round."""
        files = sorted((self.path / "snapshots").glob("round-*.safetensors"))
        numbered = [(path.stem.removeprefix("round-"), path) for path in files]
        return [(int(number), _tensors(path)) for number, path in numbered if number.isdigit()]

    @cached_property
    def trained(self) -> dict[str, Array]:
        """Tensors of ``model.safetensors``."""
        return _tensors(self.path / "model.safetensors")

    @property
    def megabytes(self) -> list[float]:
        """What had travelled before the first round (the warm start) and after each, both ways."""
        rounds = [
            sum(number(record.get(f"{way}_bytes")) or 0 for way in ("upload", "download"))
            for record in self.rounds
        ]
        first = number(self.summary.get("warm_up_upload_bytes")) or 0
        return [total / 1e6 for total in accumulate(rounds, initial=first)]

    def last(self, name: str) -> float | None:
        """Return a metric of the summary or, while the run goes on, of the newest round that has it."""
        if self.summary:
            return number(self.summary.get(name))
        return next(
            (value for r in reversed(self.rounds) if (value := number(r.get(name))) is not None), None
        )


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
    """Read a run folder; what is damaged is told in ``problem``, never raised."""
    try:
        config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        summary = _json(folder / "summary.json")
        state: State = "finished" if summary else "running" if _is_written(folder) else "stopped"
        record = RunRecord(
            folder, state, config, read_metrics(folder), summary,
            _clients(folder / "clients.csv"), _json(folder / "model.json"), _last_words(folder),
        )  # fmt: skip
        _ = (record.seed, record.total_rounds, record.analysis, record.snapshots)
        return record
    except (RunFolderError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        return RunRecord(folder, "damaged", problem=str(error))


def _last_words(folder: Path) -> str:
    """Return the last line of the traceback that ``fedcue compare`` leaves beside a run that failed."""
    path = Path(f"{folder.resolve()}.error.txt")
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _is_written(folder: Path) -> bool:
    """Say whether the process named in the folder's lock is alive (the lock itself is left alone)."""
    try:
        os.kill(int((folder / ".lock").read_text()), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold an object.")
    return value


def _clients(path: Path) -> list[Client]:
    if not path.is_file():
        return []
    csv.field_size_limit(2**24)
    with open(path, newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        split = "validation" if "validation_accuracy" in (table.fieldnames or ()) else "test"
        return [
            Client(
                id=int(row["id"]),
                name=row["name"],
                domain=row["domain"],
                heldout=row["heldout"] == "true",
                train_size=int(row["train_size"]),
                test_size=int(row[f"{split}_size"]),
                accuracy=float(row[f"{split}_accuracy"]) if row[f"{split}_accuracy"] else None,
            )
            for row in table
        ]


def _tensors(path: Path) -> dict[str, Array]:
    if not path.is_file():
        return {}
    try:
        return dict(load_file(path))
    # numpy lacks some types, of which safetensors learns by an AttributeError
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise RunFolderError(f"{path} is damaged: {error}. Repeat the run.") from error


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
