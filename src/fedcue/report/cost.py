"""What a run spends: after each round, until it reaches a target, and in one visit of a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedcue.evaluate.curve import on_curve
from fedcue.report.runs import RunRecord, number


@dataclass(frozen=True)
class Cost:
    """What a run has spent up to a moment: all clients, both ways, the warm start included."""

    round: float | None = 0.0
    floats: float = 0.0
    bytes: float = 0.0
    client_floats: float = 0.0
    """Both ways, of one client in each round, without the warm start."""
    client_download_floats: float = 0.0
    """What one client in each round receives: one direction, as the paper counts."""
    seconds: float = 0.0

    @property
    def megabytes(self) -> float:
        """The bytes in MB."""
        return self.bytes / 1e6

    def after(self, record: Mapping[str, Any]) -> Cost:
        """Return the cost after one more round."""
        floats, visits = _sum(record, "upload_floats", "download_floats"), max(1, _visits(record))
        received = _sum(record, "download_floats") / visits
        return Cost(
            round=number(record.get("round")),
            floats=self.floats + floats,
            bytes=self.bytes + _sum(record, "upload_bytes", "download_bytes"),
            client_floats=self.client_floats + floats / visits,
            client_download_floats=self.client_download_floats + received,
            seconds=self.seconds + _sum(record, "seconds"),
        )


def costs_by_round(run: RunRecord) -> list[Cost]:
    """Return the cost before the first round (the warm start) and after each round."""
    floats, bytes_ = (_sum(run.summary, f"warm_up_upload_{unit}") for unit in ("floats", "bytes"))
    costs = [Cost(floats=floats, bytes=bytes_)]
    for record in run.rounds:
        costs.append(costs[-1].after(record))
    return costs


def cost_to_target(run: RunRecord, target: float) -> Cost | None:
    """Return the cost until the mean accuracy first reaches a target, none if it never does.

    What clients train for the last test alone does not count: no earlier test had it.
    A run without rounds is there before the first one, or never. A run that ended early has its last
    test in its summary only. When a run got there is unknown if only its end was tested again.
    """
    if run.tested_again:
        return None
    costs = costs_by_round(run)
    for record, cost in zip(run.rounds, costs[1:], strict=True):
        accuracy = number(on_curve(record))
        if accuracy is not None and cost.round is not None and accuracy >= target:
            return cost
    final = number(on_curve(run.summary))
    if final is None or final < target or costs[-1].round is None:
        return None
    return costs[-1] if run.rounds else replace(costs[0], seconds=run.last("seconds") or 0.0)


def best_accuracy(run: RunRecord) -> float | None:
    """Return the highest mean accuracy a run was ever tested with."""
    tests = [*run.rounds, run.summary]
    found = [value for test in tests if (value := number(on_curve(test))) is not None]
    return max(found, default=None)


def per_visit(run: RunRecord, name: str) -> float | None:
    """Return floats or bytes that one client sends or receives in one round, the warm start left out."""
    visits = sum(_visits(record) for record in run.rounds)
    return sum(_sum(record, name) for record in run.rounds) / visits if visits else None


def _visits(record: Mapping[str, Any]) -> int:
    clients = record.get("clients")
    return len(clients) if isinstance(clients, list) else 0


def _sum(record: Mapping[str, Any], *names: str) -> float:
    return sum(number(record.get(name)) or 0.0 for name in names)
