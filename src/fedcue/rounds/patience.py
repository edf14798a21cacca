"""When a run has stopped getting better on validation images, and may end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedcue.evaluate.curve import on_curve


class Patience:
    """Watches the evaluated rounds of a run; says when as many as its limit were no better than the best."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.best: tuple[float, int] | None = None
        """The best mean accuracy so far, and the round that had it first."""
        self.since = 0

    def add(self, *records: Mapping[str, Any]) -> None:
        """Take evaluated rounds in; others change nothing."""
        for record in records:
            accuracy = on_curve(record)
            if accuracy is None:
                continue
            better = self.best is None or accuracy > self.best[0]
            self.best = (accuracy, record["round"]) if better else self.best
            self.since = 0 if better else self.since + 1

    @property
    def over(self) -> str:
        """Why the run may end; empty while it should go on."""
        if self.limit is None or self.since < self.limit or self.best is None:
            return ""
        accuracy, round_ = self.best
        return (
            f"{self.since} evaluated rounds were no better on validation images than round {round_} with "
            f"{accuracy:.1%} (evaluation.patience={self.limit})."
        )


def best_validation(rounds: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the round with the highest mean accuracy on validation images, if any was evaluated."""
    watching = Patience(None)
    watching.add(*rounds)
    if watching.best is None:
        return None
    accuracy, round_ = watching.best
    return {"round": round_, "mean_accuracy": accuracy}
