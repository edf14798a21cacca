"""What an attack proves: a lower bound on epsilon, with the confidence it is stated at."""

from __future__ import annotations

import math

import torch
from scipy.stats import beta
from torch import Tensor

DOUBT = 1e-3
"""The probability with which one bound on a probability may be wrong (Clopper and Pearson)."""


def lower(hits: int, trials: int, doubt: float = DOUBT) -> float:
    """Return a lower bound on a probability."""
    return float(beta.ppf(doubt, hits, trials - hits + 1)) if hits else 0.0


def upper(hits: int, trials: int, doubt: float = DOUBT) -> float:
    """Return an upper bound on a probability."""
    return 1 - lower(trials - hits, trials, doubt)


def measured_epsilon(one: Tensor, two: Tensor, delta: float) -> float:
    """Return a lower bound of epsilon from scores of releases on both datasets (larger: dataset one).

    The threshold is chosen on one half of the draws and measured on the other. The bound is wrong with a
    probability of twice ``DOUBT`` at most.
    """

    def bound(first: Tensor, second: Tensor, threshold: float) -> float:
        caught = lower(int((first > threshold).sum()), len(first))
        false = upper(int((second > threshold).sum()), len(second))
        return math.log(max(caught - delta, 1e-12) / false)

    half = len(one) // 2
    thresholds = torch.quantile(two[:half], 1 - torch.logspace(-3, 0, 40, dtype=two.dtype)).tolist()
    best = max(thresholds, key=lambda threshold: bound(one[:half], two[:half], threshold))
    return bound(one[half:], two[half:], best)
