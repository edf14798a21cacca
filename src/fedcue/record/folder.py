"""The run folder: names and layout that reports and outside tools rely on."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from fedcue.errors import RunFolderError
from fedcue.foreign import text_of
from fedcue.record.checkpoint import Checkpoints
from fedcue.record.files import (
    explained,
    is_earlier_settings,
    not_plain,
    read_json,
    without_formula,
    write_json,
    write_tensors,
    write_text,
)
from fedcue.record.lock import FolderLock
from fedcue.types import ClientMemory, Tensors

OURS = (
    "config.toml", "metrics.jsonl", "clients.csv", "summary.json", "model.safetensors", "model.json",
    "clients.safetensors", "analysis.safetensors", "snapshots", "checkpoints", "releases.jsonl", "log",
    "joined.json", "sums", ".lock",
)  # fmt: skip


class RunFolder:
    """One run's folder, locked by the process that writes it."""

    def __init__(self, path: Path, checkpoints_kept: int = 2) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints", checkpoints_kept)
        self.metrics_bytes = 0
        self._digest = hashlib.sha256()
        self._lock = FolderLock(path)

    def open(self, *, overwrite: bool = False, resume: bool = False) -> None:
        """Make or take the folder; refuse one that is in use or not empty, unless told otherwise."""
        with explained(self.path):
            entries = list(self.path.iterdir()) if self.path.is_dir() else []
            foreign = [entry.name for entry in entries if not _is_ours(entry)]
            strange = next(not_plain(self.path, filter(_is_ours, entries)), None)
            if strange and resume:
                raise RunFolderError(
                    f"{strange} is a link or a pipe: what is written would go elsewhere. Put the file "
                    "itself there, or give another --out."
                )
            if foreign and not resume:
                raise RunFolderError(
                    f"{self.path} is not a run folder (it holds {foreign[0]!r}). Give an empty --out."
                )
            begun = any(
                entry.name != ".lock" for entry in entries
            )  # killed before that, there is nothing yet
            if begun and not (overwrite or resume):
                raise RunFolderError(
                    f"{self.path} is not empty. Give another --out, --resume to go on, or --overwrite (in "
                    "Python: out, resume=True or overwrite=True)."
                )
            if resume and not (self.path / "config.toml").is_file():
                raise RunFolderError(f"{self.path} holds no run to resume. Start one without --resume.")
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            _remove_unfinished(self.path)
            if not resume:
                _clear(self.path)

    def close(self) -> None:
        """Release the folder; a process that dies releases it, too."""
        self._lock.release()

    def write_config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``config.toml``: every setting, the versions and the commit; return what it holds."""
        whole = {**settings, "environment": environment()}
        write_text(self.path / "config.toml", tomli_w.dumps(whole))
        return whole

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one round to ``metrics.jsonl``."""
        path = self.path / "metrics.jsonl"
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with explained(path), open(path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
            self.metrics_bytes = file.tell()
        self._digest.update(line)

    @property
    def begun(self) -> bool:
        """Whether there is something to go on from; a run stopped in its warm start has to start anew."""
        return self.checkpoints.any() or bool(self.read_metrics())

    def append_release(self, clients: Sequence[int], releases: float) -> None:
        """Append to ``releases.jsonl``, before it happens, that these clients release something."""
        line = json.dumps({"clients": [int(client) for client in clients], "releases": releases}) + "\n"
        path = self.path / "releases.jsonl"
        with explained(path), open(path, "a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # a line cut short was followed by no release
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def read_releases(self) -> list[tuple[list[int], float]]:
        """Return who released how often, as far as that was written down."""
        path = self.path / "releases.jsonl"
        releases: list[tuple[list[int], float]] = []
        damaged = f"{path} is damaged, so that what was spent is not known. Put it back, or start a new run."
        try:
            records = _records(path)
        except RunFolderError as error:
            raise RunFolderError(damaged) from error
        for record in records:
            clients, count = record.get("clients"), _positive(record.get("releases"))
            own: list[Any] = clients if isinstance(clients, list) and clients else [None]
            known = all(type(client) is int and 0 <= client < 2**31 for client in own)
            if not known or count is None:
                raise RunFolderError(damaged)
            releases.append((own, count))
        return releases

    @property
    def metrics_digest(self) -> str:
        """Checksum of ``metrics.jsonl`` as far as it was written."""
        return self._digest.hexdigest()

    def truncate_metrics(self, length: int, digest: str) -> None:
        """Cut ``metrics.jsonl`` back to the length a checkpoint remembers; refuse one that was changed."""
        path = self.path / "metrics.jsonl"
        with explained(path), open(path, "a+b") as file:
            file.seek(0)
            self._digest = hashlib.sha256(file.read(length))
            if self.metrics_digest != digest:
                raise RunFolderError(
                    f"{path} is not what its checkpoint remembers. Put the file back, or start again with "
                    "--overwrite."
                )
            file.truncate(length)
        self.metrics_bytes = length

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rounds recorded so far."""
        return read_metrics(self.path)

    def write_clients(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write ``clients.csv``, one line per client."""
        table = list(rows)
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: without_formula(value) for key, value in row.items()} for row in table)
        write_text(self.path / "clients.csv", text.getvalue())

    def write_memories(self, memories: Mapping[int, ClientMemory]) -> None:
        """Write ``clients.safetensors``: what each client keeps, as ``ID/name``."""
        tensors = {f"{c}/{name}": t for c, memory in memories.items() for name, t in memory.tensors.items()}
        if tensors:
            write_tensors(self.path / "clients.safetensors", tensors)

    def write_model(self, tensors: Tensors, description: Mapping[str, Any]) -> None:
        """Write ``model.safetensors`` and ``model.json``."""
        write_tensors(self.path / "model.safetensors", tensors)
        write_json(self.path / "model.json", description)

    def write_snapshot(self, round_: int, tensors: Tensors) -> None:
        """Keep the prompts of one round in ``snapshots/``."""
        with explained(self.path):
            (self.path / "snapshots").mkdir(exist_ok=True)
        write_tensors(self.path / "snapshots" / f"round-{round_:06d}.safetensors", tensors)

    def write_analysis(self, tensors: Tensors) -> None:
        """Write ``analysis.safetensors``, what the figures need, if anything is known."""
        if tensors:
            write_tensors(self.path / "analysis.safetensors", tensors)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``; its presence says that the run is finished."""
        write_json(self.path / "summary.json", summary)


def _is_ours(entry: Path) -> bool:
    return entry.name in OURS or is_earlier_settings(entry.name) or _is_unfinished(entry)


def _is_unfinished(entry: Path) -> bool:
    """Tell whether a file was being written when its process died."""
    return entry.name.startswith(".") and entry.suffix == ".part"


def _remove_unfinished(folder: Path) -> None:
    for place in (folder, folder / "checkpoints", folder / "snapshots"):
        for entry in list(place.iterdir()) if place.is_dir() else []:
            if _is_unfinished(entry) and (entry.is_symlink() or not entry.is_dir()):
                entry.unlink()


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name == ".lock" or not _is_ours(path):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds recorded in a run folder; an unfinished last line is passed over."""
    return _records(folder / "metrics.jsonl")


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        lines = text_of(path).split("\n")[:-1] if path.is_file() else []
        records = [json.loads(line) for line in lines]
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {error}. Resume or repeat the run.") from error
    if not all(isinstance(record, dict) for record in records):
        raise RunFolderError(f"{path} is damaged: each line must be an object. Resume or repeat the run.")
    return records


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished run."""
    path = folder / "summary.json"
    if not path.is_file():
        raise RunFolderError(f"{folder} holds no summary.json: the run is not finished. Resume it first.")
    summary = read_json(path)
    if not isinstance(summary, dict):
        raise RunFolderError(f"{path} is damaged: it must hold an object. Repeat the run.")
    return summary


@cache
def environment() -> dict[str, str]:
    """Return the versions a result depends on."""
    versions = {name: version(name) for name in ("fedcue", "torch", "numpy")}
    return {
        **versions,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "commit": _commit(),
    }


def _commit() -> str:
    """Return the commit of the source tree fedcue runs from, with + if it was changed."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", str(here)], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return commit.stdout.strip() + "+" * bool(changed.stdout.strip()) if commit.returncode == 0 else "unknown"


def _positive(value: Any) -> float | None:
    """Return a number above 0 as it is, and None for anything else."""
    return value if type(value) in (int, float) and 0 < value < 2**31 else None
