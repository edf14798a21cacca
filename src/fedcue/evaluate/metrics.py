"""From predictions to the numbers of the paper: mean, worst and percentiles over clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (5, 10, 15)


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
