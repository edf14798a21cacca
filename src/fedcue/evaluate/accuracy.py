"""From predictions to the numbers of the paper: mean, worst and percentiles over clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcue.clients.host import Prediction
from fedcue.clients.roster import Roster
from fedcue.errors import FedcueError
from fedcue.evaluate.curve import UNADAPTED

PERCENTILES = (5, 10, 15)


@dataclass(frozen=True)
class Accuracies:
    """How many of its test images the model got right for each client, under one state.

    A client of whom nothing is known has a total of 0. Only a simulation knows the ``prediction``.
    """

    roster: Roster
    correct: NDArray[np.int64]
    total: NDArray[np.int64]
    prediction: Prediction | None = None
    missing: Mapping[int, str] = field(default_factory=dict)
    """Clients that did not answer, and why."""
    adaptation: Adaptation | None = None
    """What clients did for this test alone."""

    @classmethod
    def of(cls, roster: Roster, prediction: Prediction, missing: Mapping[int, str]) -> Accuracies:
        """Count the right predictions."""
        right = prediction.clients[prediction.labels == prediction.predicted]
        count = partial(np.bincount, minlength=len(roster))
        return cls(roster, count(right), count(prediction.clients), prediction, missing)

    def checked(self) -> Accuracies:
        """Return the accuracies themselves, unless it says nothing of the clients that train."""
        if self.total[~self.roster.heldout].any():
            return self
        reasons = "; ".join(f"client {client}: {why}" for client, why in list(self.missing.items())[:3])
        raise FedcueError(f"No client that trains could be tested ({reasons}). Mend them, then resume.")

    @property
    def accuracies(self) -> NDArray[np.float64]:
        """Accuracy of every client; nan where it is not known or the method cannot serve it."""
        return np.where(self.total > 0, self.correct / np.maximum(self.total, 1), np.nan)

    def metrics(self) -> dict[str, float | None]:
        """Return mean and worst accuracy of the clients that train and of those held out."""
        heldout, known = self.roster.heldout, self.total > 0
        out = {"heldout_mean_accuracy": None, "heldout_worst_accuracy": None}
        own, others = self.accuracies[known & ~heldout], self.accuracies[known & heldout]
        told = self.adaptation.metrics() if self.adaptation else {}
        return {**summarise(own), **out, **summarise(others, "heldout_"), **told}

    def untested(self) -> list[dict[str, Any]]:
        """Return which clients are not in these numbers, and why."""
        return [{"client": client, "reason": why} for client, why in self.missing.items()]

    def domains(self) -> dict[str, dict[str, float]]:
        """Return accuracy by domain over the clients that train, if there are several domains."""
        if len(set(self.roster.domains)) < 2:
            return {}
        keep = np.flatnonzero((self.total > 0) & ~self.roster.heldout)
        domains = [self.roster.domains[client] for client in keep.tolist()]
        return by_domain(domains, self.accuracies[keep], self.total[keep])

    def client_rows(self) -> Iterator[dict[str, Any]]:
        """Yield one line per listed client for ``clients.csv``; columns say on which images it was tested."""
        roster, accuracies, split = self.roster, self.accuracies, self.roster.config.evaluation.on
        sizes = self.total if split == "validation" else roster.test_sizes
        for client in roster.listed.tolist():
            accuracy = accuracies[client]
            yield {
                "id": client,
                "name": roster.names[client],
                "domain": roster.domains[client],
                "heldout": str(bool(roster.heldout[client])).lower(),
                "train_size": int(roster.train_sizes[client]),
                f"{split}_size": int(sizes[client]),
                f"{split}_accuracy": "" if np.isnan(accuracy) else f"{accuracy:.6f}",
            }


@dataclass(frozen=True)
class Adaptation:
    """What clients trained for the last test alone, and the same test without it."""

    before: Accuracies
    images: int
    """Images that were trained on, counted once for each epoch."""

    def metrics(self) -> dict[str, float]:
        """Return the accuracies without it, and what it took."""
        without = {
            UNADAPTED + key: value for key, value in self.before.metrics().items() if value is not None
        }
        return {**without, "adaptation_images": self.images}


def summarise(accuracies: NDArray[np.float64], prefix: str = "") -> dict[str, float]:
    """Return the unweighted mean, the worst and low percentiles of the clients' accuracies."""
    if not len(accuracies):
        return {}
    summary = {"mean_accuracy": accuracies.mean(), "worst_accuracy": accuracies.min()}
    for percent in PERCENTILES:
        summary[f"percentile_{percent}_accuracy"] = np.percentile(accuracies, percent)
    return {prefix + name: float(value) for name, value in summary.items()}


def by_domain(
    domains: Sequence[str], accuracies: NDArray[np.float64], sizes: NDArray[np.int64]
) -> dict[str, dict[str, float]]:
    """Return each domain's accuracy, averaged over clients and pooled over images."""
    names = np.array(domains)
    return {
        name: {
            "client_mean_accuracy": float(accuracies[names == name].mean()),
            "pooled_accuracy": float(np.average(accuracies[names == name], weights=sizes[names == name])),
        }
        for name in sorted(set(domains))
    }
