"""From finished run folders to rows of a table and points of curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from fedcue.errors import RunFolderError
from fedcue.evaluate.curve import on_curve
from fedcue.foreign import STRANGE, csv_of, read_toml
from fedcue.grid.table import ACCURACIES, CONTROL, DOMAIN, Entry
from fedcue.record.folder import read_metrics, read_summary

COSTS = {
    "upload_floats": "total_upload_floats",
    "download_floats": "total_download_floats",
    "warm_up_floats": "warm_up_upload_floats",
    "upload_bytes": "total_upload_bytes",
    "download_bytes": "total_download_bytes",
    "warm_up_bytes": "warm_up_upload_bytes",
    "adaptation_images": "adaptation_images",
    "seconds": "seconds",
    "workers": "workers",
    "peak_memory_mb": "peak_memory_mb",
    "bad_images": "bad_images",
}
"""Columns of a table and their names in a run's summary."""


def read_entry(folder: Path, names: Mapping[str, str], control: Path | None = None) -> Entry:
    """Read a finished run, and its test with the log prior if there is one, under the given names."""
    try:
        summary, rounds = read_summary(folder), read_metrics(folder)
        again = "tested_again" in summary
        row = {
            **names,
            **_accuracies(summary),
            **{column: _text(summary.get(name)) for column, name in COSTS.items()},
            "visits": str(sum(len(record["clients"]) for record in rounds)),
            "untested": str(len(summary.get("untested", ()))),
            "ended_early": "true" if "ended_early" in summary else "",
            **_origin(folder),
            "clients": _clients(folder),
        }
        if again:  # no training of its own
            row["seconds"] = _text(summary["tested_again"]["seconds"])
        if control is not None:
            tested = _accuracies(read_summary(control)) | {"clients": _clients(control)}
            row |= {CONTROL + column: value for column, value in tested.items()}
        return Entry(row, () if again else tuple(_curve(summary, rounds)))
    except STRANGE as error:
        raise RunFolderError(
            f"{folder} is not a finished run that can be read ({type(error).__name__}: {error}). "
            "Delete the folder and run it again."
        ) from error


def _accuracies(summary: Mapping[str, Any]) -> dict[str, str]:
    found = {name: _text(summary.get(f"{name}_accuracy")) for name in ACCURACIES}
    for domain, numbers in summary.get("domains", {}).items():
        found[f"{DOMAIN}{domain}"] = _text(numbers["client_mean_accuracy"])
        found[f"{DOMAIN}{domain}:pooled"] = _text(numbers["pooled_accuracy"])
    return found


def _text(value: Any) -> str:
    """Return a number as a cell: ten digits after the point, nothing for none."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.10f}".rstrip("0").rstrip(".") if abs(value) < 1e15 else str(value)
    return value if isinstance(value, str) else json.dumps(value)


def _origin(folder: Path) -> dict[str, str]:
    """Return when and with what a run was made."""
    environment = read_toml(folder / "config.toml").get("environment", {})
    named = [f"{name} {environment[name]}" for name in ("fedcue", "torch", "python") if name in environment]
    finished = datetime.fromtimestamp((folder / "summary.json").stat().st_mtime, UTC)
    return {
        "date": finished.strftime("%Y-%m-%d"),
        "commit": str(environment.get("commit", "")),
        "versions": ", ".join([*named, *filter(None, [environment.get("machine")])]),
    }


def _clients(folder: Path) -> str:
    """Return each client's right answers of its images; a client that could not be tested has none."""
    found = []
    _, rows = csv_of(folder / "clients.csv")
    for row in rows:
        on = "validation" if "validation_accuracy" in row else "test"
        accuracy, size = row[f"{on}_accuracy"], int(row[f"{on}_size"])
        right = str(round(float(accuracy) * size)) if accuracy else ""
        found.append(f"{row['id']}:{right}/{size}{'h' if row['heldout'] == 'true' else ''}")
    return " ".join(found)


def _curve(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rounds that were tested; losses are averaged over the rounds since the last test."""
    floats, bytes_ = int(summary["warm_up_upload_floats"]), int(summary["warm_up_upload_bytes"])
    points, losses = [], []
    for record in rounds:
        floats += record["upload_floats"] + record["download_floats"]
        bytes_ += record["upload_bytes"] + record["download_bytes"]
        if record.get("train_loss") is not None:
            losses.append(record["train_loss"])
        if record.get("mean_accuracy") is None:
            continue
        points.append(
            {
                "round": str(record["round"]),
                "mean": _text(on_curve(record)),
                "worst": _text(on_curve(record, "worst_accuracy")),
                "heldout": _text(record.get("heldout_mean_accuracy")),
                "train_loss": _text(fmean(losses)) if losses else "",
                "floats": str(floats),
                "bytes": str(bytes_),
            }
        )
        losses = []
    return points
