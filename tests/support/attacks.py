"""What an attack proves: a lower bound on epsilon, with the confidence it is stated at."""

from __future__ import annotations

import math

import torch
from scipy.stats import beta, norm
from torch import Tensor

DOUBT = 1e-3
"""The probability with which one bound on a probability may be wrong (Clopper and Pearson)."""


def lower(hits: int, trials: int, doubt: float = DOUBT) -> float:
    """Return a lower bound on a probability."""
    return float(beta.ppf(doubt, hits, trials - hits + 1)) if hits else 0.0


def upper(hits: int, trials: int, doubt: float = DOUBT) -> float:
    """Return an upper bound on a probability."""
    return 1 - lower(trials - hits, trials, doubt)


def epsilon_beyond(threshold: float, one: Tensor, two: Tensor, delta: float) -> float:
    """Return a lower bound of epsilon from how many scores of each dataset are beyond a threshold.

    The bound is wrong with a probability of twice ``DOUBT`` at most, if the scores did not choose the threshold.
    """
    caught = lower(int((one > threshold).sum()), len(one))
    false = upper(int((two > threshold).sum()), len(two))
    return math.log(max(caught - delta, 1e-12) / false)


def measured_epsilon(one: Tensor, two: Tensor, delta: float) -> float:
    """Return a lower bound of epsilon from scores of releases on both datasets (larger: dataset one).

    The threshold is chosen on one half of the draws and measured on the other.
    """
    half = len(one) // 2
    thresholds = torch.quantile(two[:half], 1 - torch.logspace(-3, 0, 40, dtype=two.dtype)).tolist()
    best = max(thresholds, key=lambda threshold: epsilon_beyond(threshold, one[:half], two[:half], delta))
    return epsilon_beyond(best, one[half:], two[half:], delta)


def expected_threshold(distance: float, draws: int, delta: float) -> float:
    """Return the threshold that promises most for Gaussian scores this many deviations apart, two's around 0."""

    def promised(threshold: float) -> float:
        caught, false = (round(draws * norm.sf(threshold, loc=mean)) for mean in (distance, 0))
        return math.log(max(lower(caught, draws) - delta, 1e-12) / upper(false, draws))

    return max(torch.linspace(-1, 4, 101).tolist(), key=promised)
