"""Who holds what: training images by client and class, and by domain and class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedcue.report.figures.figure import Axis, Figure, Heat, Panel
from fedcue.report.groups import RunGroup, federations
from fedcue.report.labels import shorten
from fedcue.report.runs import RunRecord, section

_MAX_MAP_CELLS = 40_000


def partition_map(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw how many training images of each class each client holds."""
    runs = federations(groups)[:4]
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
    rows = max(1, _MAX_MAP_CELLS // max(1, counts.shape[1]))
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


def domain_map(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw which domain holds how many images of each class: skewed features, skewed labels."""
    panels = []
    for run in federations(groups)[:4]:
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
