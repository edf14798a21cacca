"""The page: one HTML file that needs nothing else, with the classes and confusions of each client."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedcue.report import overview, palette
from fedcue.report.figures.catalogue import build_all
from fedcue.report.figures.clients import worst_clients
from fedcue.report.figures.figure import Figure, plain
from fedcue.report.groups import RunGroup, federations, group_runs
from fedcue.report.labels import method_label, shorten
from fedcue.report.method_table import method_table
from fedcue.report.run_files import Client
from fedcue.report.runs import RunRecord

_SCRIPTS = (
    "draw.js", "kinds.js", "legend.js", "values.js", "table.js", "client.js", "theme.js",
    "live.js", "start.js",
)  # fmt: skip


@dataclass(frozen=True)
class _Section:
    """A part of the page: its anchor, its heading and its figures."""

    id: str
    title: str
    figures: tuple[Figure, ...] = ()


SECTIONS = {
    "run": "What was run",
    "methods": "Methods",
    "training": "Accuracy and loss",
    "clients": "Clients",
    "partition": "Data",
    "generalisation": "New clients",
    "inside": "Inside the prompts",
    "sensitivity": "Settings",
    "privacy": "Privacy",
    "failures": "Failures",
}


def render(runs: Sequence[RunRecord], live: bool = False) -> str:
    """Return the page of these runs; a live page updates itself from the server it came from."""
    groups = group_runs(runs)
    figures = build_all(groups)
    data = {
        "figures": {figure.name: plain(figure) for made in figures.values() for figure in made},
        "clients": client_details(groups),
        "palette": {"light": palette.LIGHT, "dark": palette.DARK, "symbols": palette.SYMBOLS},
    }
    always = ("run", "methods", "privacy", "failures")
    sections = [
        _Section(name, title, tuple(figures.get(name, ())))
        for name, title in SECTIONS.items()
        if name in figures or name in always
    ]
    return _environment().get_template("page.html").render(
        title=overview.title(groups) if groups else "no readable run",
        headline=overview.headline(groups),
        sections=sections,
        facts=overview.settings(runs),
        runs=[_status(run) for run in runs],
        table=method_table(groups),
        worst=worst_clients(groups),
        has_client_details=data["clients"] is not None,
        privacy=overview.privacy(groups),
        failures=overview.failures(runs),
        live=live,
        data=embed(data),
        charts=_asset("echarts/echarts.min.js"),
        script=_script(),
        style=_asset("page.css"),
        policy=_policy(live),
    )  # fmt: skip


def embed(value: Any) -> Markup:
    """Return JSON that can stand inside a script element whatever its strings hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)


def _status(run: RunRecord) -> dict[str, Any]:
    accuracy, loss = run.last("mean_accuracy"), run.rounds[-1].get("train_loss") if run.rounds else None
    return {
        "name": shorten(run.path.name),
        "method": method_label(run.method),
        "seed": run.seed if run.config else None,
        "state": run.state,
        "done": len(run.rounds),
        "total": max(run.total_rounds, len(run.rounds)),
        "accuracy": "–" if accuracy is None else f"{accuracy:.1%}",
        "loss": f"{loss:.3f}" if isinstance(loss, float) else "–",
    }


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedcue.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _asset(name: str) -> Markup:
    text = (resources.files("fedcue.report") / "assets" / name).read_text(encoding="utf-8")
    if "</script" in text.lower() or "</style" in text.lower():
        raise ValueError(f"{name} cannot be inlined: it closes its own element.")
    return Markup(text)


@cache
def _script() -> Markup:
    parts = [_asset(f"page/{name}") for name in _SCRIPTS]
    return Markup("(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();")


@cache
def _policy(live: bool) -> str:
    """Return what the page may do: run its own two scripts and, when live, ask its own server."""
    scripts = [
        hashlib.sha256(text.encode()).digest() for text in (_asset("echarts/echarts.min.js"), _script())
    ]
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in scripts),
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


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
