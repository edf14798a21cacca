"""What the page shows of a single client: its classes and its confusions, within a limit of size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcue.report.groups import RunGroup, federations
from fedcue.report.labels import shorten
from fedcue.report.run_files import Client
from fedcue.report.runs import RunRecord

_BUDGET = 1_500_000
"""Bytes of JSON at most; beyond them clients are shown without confusions."""


def client_details(groups: Sequence[RunGroup], budget: int = _BUDGET) -> dict[str, Any] | None:
    """Return the clients of the first federation with their classes and, by group, their confusions."""
    shared = next((run for run in federations(groups) if run.clients), None)
    if shared is None:
        return None
    same = shared.class_counts.tobytes()
    members = [
        (group.label, run)
        for group in groups
        if (run := next((r for r in group.runs if r.clients and r.class_counts.tobytes() == same), None))
    ]
    confusions = [_confusions(run) for _, run in members]
    clients, size = [], 0
    for client in shared.clients:
        entry = _entry(client, shared, [run for _, run in members])
        pairs = [by_client.get(client.id, []) for by_client in confusions]
        size += len(json.dumps(entry)) + len(json.dumps(pairs))
        if size <= budget:
            entry["confusions"] = pairs
        clients.append(entry)
    return {
        "classes": [shorten(name) for name in shared.classes],
        "series": [label for label, _ in members],
        "seed": shared.seed,
        "clients": clients,
    }


def _entry(client: Client, shared: RunRecord, runs: Sequence[RunRecord]) -> dict[str, Any]:
    in_range = client.id < len(shared.class_counts)
    counts = shared.class_counts[client.id] if in_range else np.zeros(0, int)
    accuracies = [next((c.accuracy for c in run.clients if c.id == client.id), None) for run in runs]
    return {
        "id": client.id,
        "name": shorten(client.name),
        "domain": shorten(client.domain),
        "heldout": client.heldout,
        "train": client.train_size,
        "test": client.test_size,
        "classes": [[int(c), int(counts[c])] for c in np.argsort(-counts, kind="stable") if counts[c]],
        "accuracies": accuracies,
    }


def _confusions(run: RunRecord) -> dict[int, list[list[int]]]:
    """Return by client the triples (true class, predicted class, images)."""
    names = ("clients", "labels", "predicted")
    if any(name not in run.analysis for name in names):
        return {}
    columns = [run.analysis[name].ravel().astype(int) for name in names]
    if len({len(column) for column in columns}) > 1:  # a damaged file
        return {}
    rows = np.stack(columns, 1)
    found: dict[int, list[list[int]]] = {}
    unique, counts = np.unique(rows, axis=0, return_counts=True)
    for (client, label, predicted), count in zip(unique.tolist(), counts.tolist(), strict=True):
        if 0 <= label < len(run.classes) and 0 <= predicted < len(run.classes):
            found.setdefault(client, []).append([label, predicted, count])
    return found
