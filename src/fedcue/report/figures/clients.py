"""How well each client, and each domain, is served."""

from __future__ import annotations

from collections.abc import Sequence

from fedcue.report.figures.figure import Axis, Figure, Panel, Series
from fedcue.report.groups import RunGroup, domains_of
from fedcue.report.labels import shorten
from fedcue.report.run_files import Client
from fedcue.report.runs import RunRecord

ACCURACY = Axis("accuracy", percent=True)


def client_accuracies(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw every client's accuracy, a row per method."""
    shown = [(group, tested) for group in groups if (tested := _tested(group.runs[0]))]
    if not shown:
        return None
    rows = tuple(group.label for group, _ in shown)
    lines = tuple(
        Series(
            group.label,
            [client.accuracy for client in tested],
            [row] * len(tested),
            group.slot,
            labels=[_client_label(client) for client in tested],
            clients=[client.id for client in tested],
        )
        for row, (group, tested) in enumerate(shown)
    )
    seeds = sorted({group.runs[0].seed for group, _ in shown})
    caption = (
        f"A dot is a client (seed {', '.join(map(str, seeds))}); the bar spans the middle half, the tick is "
        "the median. Choose a dot to see the client."
    )
    worst = "; ".join(f"{label}: {names}" for label, names in worst_clients(groups))
    panel = Panel("strip", ACCURACY, Axis("", categories=rows), lines)
    return Figure("clients", "Accuracy of each client", (panel,), caption, f"Worst clients. {worst}.")


def _tested(run: RunRecord) -> list[Client]:
    return sorted((c for c in run.clients if c.accuracy is not None), key=lambda c: (c.accuracy or 0, c.id))


def _client_label(client: Client) -> str:
    domain = f", {shorten(client.domain)}" if client.domain else ""
    return f"{shorten(client.name)}{domain}{', held out' if client.heldout else ''}"


def _worst(tested: Sequence[Client]) -> str:
    return ", ".join(f"{shorten(client.name)} {client.accuracy or 0:.1%}" for client in tested[:3])


def worst_clients(groups: Sequence[RunGroup]) -> list[tuple[str, str]]:
    """Name the worst clients of every group."""
    return [(group.label, _worst(tested)) for group in groups if (tested := _tested(group.runs[0]))]


def domain_accuracies(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw accuracy by domain, averaged over the domain's clients."""
    names = domains_of(groups)
    if not names:
        return None
    lines = []
    for group in groups:
        values = [group.domain_over_seeds(name).mean for name in names]
        if any(value is not None for value in values):
            lines.append(Series(group.label, list(range(len(names))), values, group.slot))
    axis = Axis("", categories=tuple(map(shorten, names)))
    alt = "; ".join(f"{line.name}: " + _by_name(names, line.y) for line in lines)
    panel = Panel("bar", axis, ACCURACY, tuple(lines))
    return Figure("domains", "Accuracy by domain", (panel,), "", alt + ".")


def _by_name(names: Sequence[str], values: Sequence[float | None]) -> str:
    return ", ".join(f"{shorten(n)} {v:.1%}" for n, v in zip(names, values, strict=True) if v is not None)
