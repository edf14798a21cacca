"""Figures of the clients: their accuracies, their data, and those that never trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedcue.report.figure import Axis, Figure, Heat, Panel, Series
from fedcue.report.names import shorten
from fedcue.report.runs import Client, RunRecord, number, section
from fedcue.report.series import RunSeries, federations

MAX_MAP_CELLS = 40_000
ACCURACY = Axis("accuracy", percent=True)


def client_accuracies(series: Sequence[RunSeries]) -> Figure | None:
    """Draw every client's accuracy, a row per method."""
    shown = [(one, tested) for one in series if (tested := _tested(one.runs[0]))]
    if not shown:
        return None
    rows = tuple(one.label for one, _ in shown)
    lines = tuple(
        Series(
            one.label,
            [client.accuracy for client in tested],
            [row] * len(tested),
            one.slot,
            labels=[_client_label(client) for client in tested],
            clients=[client.id for client in tested],
        )
        for row, (one, tested) in enumerate(shown)
    )
    seeds = sorted({one.runs[0].seed for one, _ in shown})
    caption = (
        f"A dot is a client (seed {', '.join(map(str, seeds))}); the bar spans the middle half, the tick is "
        "the median. Choose a dot to see the client."
    )
    worst = [f"{one.label}: {_worst(tested)}" for one, tested in shown]
    panel = Panel("strip", ACCURACY, Axis("", categories=rows), lines)
    return Figure(
        "clients", "Accuracy of each client", (panel,), caption, "Worst clients. " + "; ".join(worst) + "."
    )


def _tested(run: RunRecord) -> list[Client]:
    return sorted((c for c in run.clients if c.accuracy is not None), key=lambda c: (c.accuracy or 0, c.id))


def _client_label(client: Client) -> str:
    domain = f", {shorten(client.domain)}" if client.domain else ""
    return f"{shorten(client.name)}{domain}{', held out' if client.heldout else ''}"


def _worst(tested: Sequence[Client], how_many: int = 3) -> str:
    return ", ".join(f"{shorten(client.name)} {client.accuracy or 0:.1%}" for client in tested[:how_many])


def worst_clients(series: Sequence[RunSeries]) -> list[tuple[str, str]]:
    """Name the worst clients of every series."""
    return [(one.label, _worst(tested)) for one in series if (tested := _tested(one.runs[0]))]


def domain_accuracies(series: Sequence[RunSeries]) -> Figure | None:
    """Draw accuracy by domain, averaged over the domain's clients."""
    tables = [(one, [section(run.summary, "domains") for run in one.runs]) for one in series]
    names = sorted({name for _, runs in tables for domains in runs for name in domains})
    if not names:
        return None
    lines = []
    for one, runs in tables:
        means = [[number(section(d, name).get("client_mean_accuracy")) for d in runs] for name in names]
        known = [[mean for mean in found if mean is not None] for found in means]
        values = [float(np.mean(found)) if found else None for found in known]
        if any(value is not None for value in values):
            lines.append(Series(one.label, list(range(len(names))), values, one.slot))
    axis = Axis("", categories=tuple(map(shorten, names)))
    alt = "; ".join(f"{line.name}: " + _by_name(names, line.y) for line in lines)
    return Figure(
        "domains", "Accuracy by domain", (Panel("bar", axis, ACCURACY, tuple(lines)),), "", alt + "."
    )


def _by_name(names: Sequence[str], values: Sequence[float | None]) -> str:
    return ", ".join(f"{shorten(n)} {v:.1%}" for n, v in zip(names, values, strict=True) if v is not None)


def partition_map(series: Sequence[RunSeries]) -> Figure | None:
    """Draw how many training images of each class each client holds."""
    runs = federations(series)[:4]
    panels = [_map(run) for run in runs]
    if not panels:
        return None
    caption = "Training images of each class at each client; empty: none."
    ways = {_partition(run) for run in runs}
    if len(ways) == 1:
        caption += f" {ways.pop()}."
        panels = [replace(panel, title=_seed(run, panel)) for run, panel in zip(runs, panels, strict=True)]
    heats = [panel.heat for panel in panels if panel.heat]
    alt = "; ".join(
        f"{len(heat.rows)} clients by {len(heat.columns)} classes, "
        f"{len(heat.cells) / max(1, len(heat.rows)):.1f} classes a client on average"
        for heat in heats
    )
    return Figure("partition", "Who holds which classes", tuple(panels), caption, alt + ".")


def _map(run: RunRecord) -> Panel:
    counts, classes = run.class_counts, run.classes
    rows = max(1, MAX_MAP_CELLS // max(1, counts.shape[1]))
    ids = [client.id for client in run.clients][:rows] or list(range(min(rows, len(counts))))
    named = {client.id: shorten(client.name) for client in run.clients}
    found = [(row, client) for row, client in enumerate(ids) if client < len(counts)]
    cells = [
        (row, int(column), float(counts[client, column]))
        for row, client in found
        for column in np.flatnonzero(counts[client])
    ]
    heat = Heat(
        tuple(named.get(client, str(client)) for client in ids),
        tuple(map(shorten, classes)), cells, "training images", ids,
    )  # fmt: skip
    return Panel(
        "heat", Axis("class"), Axis("client"), heat=heat, title=f"{_partition(run)}, seed {run.seed}"
    )


def _seed(run: RunRecord, panel: Panel) -> str:
    rows, clients = len(panel.heat.rows) if panel.heat else 0, len(run.class_counts)
    return f"seed {run.seed}" + (f", first {rows} of {clients} clients" if rows < clients else "")


def _partition(run: RunRecord) -> str:
    data, partition = (section(run.config, name) for name in ("data", "partition"))
    options = [f"{key.replace('_', ' ')} {value}" for key, value in partition.items() if key != "name"]
    what = shorten(f"{data.get('name', 'data')}, {partition.get('name', 'shared out')}")
    return f"{what} ({', '.join(options)})" if options else what


def domain_map(series: Sequence[RunSeries]) -> Figure | None:
    """Draw which domain holds how many images of each class: skewed features, skewed labels."""
    panels = []
    for run in federations(series)[:4]:
        domains = sorted({client.domain for client in run.clients if client.domain})
        if len(domains) < 2:
            continue
        sums = np.zeros((len(domains), run.class_counts.shape[1]), int)
        for client in run.clients:
            if client.domain and client.id < len(run.class_counts):
                sums[domains.index(client.domain)] += run.class_counts[client.id]
        cells = [(int(r), int(c), float(sums[r, c])) for r, c in zip(*np.nonzero(sums), strict=True)]
        heat = Heat(tuple(map(shorten, domains)), tuple(map(shorten, run.classes)), cells, "training images")
        panels.append(Panel("heat", Axis("class"), Axis("domain"), heat=heat, title=_partition(run)))
    if not panels:
        return None
    alt = "Training images by domain and class."
    return Figure("domain-map", "Which domain holds which classes", tuple(panels), alt, alt)


def generalisation(series: Sequence[RunSeries]) -> Figure | None:
    """Draw accuracy of the clients that train against that of clients that never do."""
    lines, missing = [], []
    for one in series:
        own, other = one.mean_std("mean_accuracy"), one.mean_std("heldout_mean_accuracy")
        if own and other:
            band = len(one.runs) > 1
            lines.append(
                Series(
                    one.label,
                    [own[0]],
                    [other[0]],
                    one.slot,
                    low=[other[0] - other[1]] if band else None,
                    high=[other[0] + other[1]] if band else None,
                )
            )
        elif own:
            missing.append(one.label)
    if not lines:
        return None
    x = Axis("accuracy of clients that train", percent=True)
    y = Axis("accuracy of held-out clients", percent=True)
    caption = (
        "Up and to the right is better; above the diagonal, new clients do better than those that trained."
    )
    if missing:
        caption += f" No held-out result: {', '.join(missing)}."
    alt = "; ".join(f"{s.name}: training {s.x[0]:.1%}, held out {s.y[0]:.1%}" for s in lines)
    panel = Panel("scatter", x, y, tuple(lines))
    return Figure("generalisation", "Personalisation and generalisation", (panel,), caption, alt + ".")
