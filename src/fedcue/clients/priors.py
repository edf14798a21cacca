"""How frequent classes are among images: from a classifier's scores, and from labels where there are some."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcue.errors import ConfigError

Numbers = NDArray[np.float64]

UNKNOWN = 0.1
"""Concentration where nothing is known of the clients: a few of many classes."""


def estimate_priors(
    logits: ArrayLike,
    concentration: float,
    temperature: float,
    labelled: ArrayLike = 0,
    steps: int = 1000,
    tolerance: float = 1e-6,
    few: float = 0.2,
) -> Numbers:
    """Estimate class priors ``[C]`` of images from their ``logits [n, C]``, which know of no priors yet.

    Priors are drawn from a symmetric Dirichlet distribution; ``labelled [C]`` counts images whose class is
    known. Each step shares every image out among the classes, by its scores and by how many images each
    class is thought to have: where clients hold few classes (a concentration up to ``few``) by variational
    Bayes, which leaves out classes of less than an image; otherwise by the other images alone (collapsed
    variational Bayes). A temperature above 1 makes each image count for less, because a classifier errs
    alike on images that are alike.
    """
    scores = np.asarray(logits, np.float64) / temperature
    known = np.asarray(labelled, np.float64) + concentration
    own = np.full(scores.shape, 1 / scores.shape[1])
    counts = known + own.sum(0)
    for _ in range(steps):
        far = counts + 6  # digamma(counts) by its series far from 0
        digamma = np.log(far) - 1 / (2 * far) - 1 / (12 * far**2) - sum(1 / (counts + k) for k in range(6))
        shares = scores + (digamma if concentration <= few else np.log(counts - own))
        shares = np.exp(shares - shares.max(1, keepdims=True))
        own = shares / shares.sum(1, keepdims=True)
        new = known + own.sum(0)
        moved, counts = np.abs(new - counts).max(), new
        if moved <= tolerance * len(scores):
            break
    priors: Numbers = counts / counts.sum()
    return priors


def as_priors(given: ArrayLike, classes: Sequence[str]) -> Numbers:
    """Return the priors ``[C]`` that a user gives; they need not sum to 1. Refuse anything else."""
    priors = _numbers(given)
    if priors.shape != (len(classes),) or not (priors >= 0).all() or not 0 < priors.sum() < math.inf:
        raise ConfigError(
            f"Priors must be {len(classes)} numbers, none negative, not all zero "
            f"(one per class: {', '.join(classes[:5])}, ...)."
        )
    return priors


def as_counts(given: ArrayLike, classes: int) -> Numbers:
    """Return a user's counts of labelled images by class; refuse anything else."""
    counts = _numbers(given)
    whole = (counts >= 0) & (counts < 1e9) & (np.floor(counts) == counts)
    if counts.shape != (classes,) or not whole.all():
        raise ConfigError(f"Labelled images must be {classes} counts, one per class, none negative.")
    return counts


def _numbers(given: ArrayLike) -> Numbers:
    """Return the given values as numbers; values that are none become an array that every check refuses."""
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError):
        return np.empty((0, 0))


def concentration_of(clients: Iterable[NDArray[np.int64]]) -> float:
    """Return the concentration of the Dirichlet distribution that clients' class counts ``[C]`` come from.

    It follows from one sum over clients: of the chance that two of a client's images are of one class,
    which is ``(a + 1) / (C a + 1)`` for a concentration ``a``.
    """
    alike, several, classes = 0.0, 0, 1
    for counts in clients:
        total, classes = int(counts.sum()), len(counts)
        if total > 1:
            alike += float((counts * (counts - 1)).sum()) / (total * (total - 1))
            several += 1
    if not several:
        return UNKNOWN
    chance = alike / several
    return min(max((1 - chance) / max(classes * chance - 1, 1e-9), 0.01), 100.0)


FALSE_ALARMS = 0.01
"""Of image sets that have the priors they are said to have, at most so many are doubted."""

_DOUBT = 0.1
"""Share of an image's score that is spread over all classes, because a classifier may be wrong and sure."""


def contradiction(logits: ArrayLike, priors: ArrayLike) -> float:
    """Return the log of how much likelier other priors make the images than ``priors [C]`` do.

    ``logits [n, C]`` must not know any priors. Priors are learned from one half of the images and tried on
    the other, and the other way round; the mean of both likelihood ratios is at most 1 in expectation if
    the given priors are the true ones. So it exceeds ``1 / FALSE_ALARMS`` with at most that probability
    (split likelihood ratio, Wasserman, Ramdas and Balakrishnan, 2020), as far as the scores are right.
    """
    scores = np.asarray(logits, np.float64)
    if len(scores) < 2:
        return 0.0
    scores = np.exp(scores - scores.max(1, keepdims=True))
    scores = (1 - _DOUBT) * scores / scores.sum(1, keepdims=True) + _DOUBT / scores.shape[1]
    given = np.asarray(priors, np.float64)
    given = given / given.sum()

    def log_ratio(learned: Numbers, tried: Numbers) -> float:
        other = estimate_priors(np.log(learned), UNKNOWN, temperature=1.0)
        return float((np.log(tried @ other) - np.log(tried @ given)).sum())

    both = log_ratio(scores[::2], scores[1::2]), log_ratio(scores[1::2], scores[::2])
    return float(np.logaddexp(*both)) - math.log(2)


def is_doubtful(logits: ArrayLike, priors: ArrayLike) -> bool:
    """Tell whether images contradict the priors they are said to have."""
    return contradiction(logits, priors) > -math.log(FALSE_ALARMS)
