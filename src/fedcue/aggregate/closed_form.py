"""Heads in closed form: what the server makes of class sums, counts and second moments of all images."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcue.aggregate.class_means import whole
from fedcue.aggregate.mean import Sums
from fedcue.errors import FedcueError

SHRINKAGE = 0.1
"""Share of the covariance that is taken as equal in all directions."""

HIDDEN = 3.0
"""How much larger than their mean variances are taken for that noise hides: chosen on validation images."""


AHEAD = 10.0
"""By how many logits a noisy regression puts a class's own mean ahead of others: chosen on validation images,
where 4 to 30 were alike."""


def valid(matrix: Tensor, deviation: float) -> Tensor:
    """Return a noisy symmetric sum of squares ``[d, d]`` as one that can be.

    The noise of a half that is as long as the whole has this deviation on the diagonal and a square root of
    two less off it: it shifts no variance by more than about ``deviation sqrt(2 d)``. Variances below that
    say nothing of their directions, but their sum is known well: they are taken as equal, and as ``HIDDEN``
    times their mean.
    """
    if not deviation:
        return matrix
    variances, directions = torch.linalg.eigh(matrix)
    edge = deviation * math.sqrt(2 * len(matrix))
    hidden = variances <= edge
    mean = variances[hidden].sum() / hidden.sum()
    variances = torch.where(hidden, HIDDEN * mean.clamp(min=edge / 20), variances)
    believed: Tensor = (directions * variances) @ directions.T
    return believed


def covariance(moments: Tensor, prototypes: Tensor, counts: Tensor, deviation: float = 0.0) -> Tensor:
    """Return how images spread around their class's mean, ``[d, d]``.

    From summed second moments ``[d (d + 1) / 2]``, class means ``[C, d]`` and counts ``[C]``; the moments may
    have noise of a known deviation.
    """
    means, counts = prototypes.double(), counts.double()
    within = valid(whole(moments) - (means.T * counts) @ means, deviation)
    return within / (counts.sum() - (counts > 0).sum()).clamp(min=1)


def whitening(spread: Tensor) -> Tensor:
    """Return ``T [d, d]`` under which images of a covariance spread about equally in all directions."""
    variances, directions = torch.linalg.eigh(spread)
    even = spread.trace().clamp(min=1e-6) / len(spread)
    deviations = ((1 - SHRINKAGE) * variances.clamp(min=0) + SHRINKAGE * even).sqrt()
    transform: Tensor = directions / deviations
    return transform.T.float()


def prototype_head(
    prototypes: Tensor, known: Tensor, scale: float, transform: Tensor | None = None
) -> dict[str, Tensor]:
    """Return a linear head from prototypes ``[C, d]``: less their mean, and all of one length.

    Both are meant after ``transform``. A prototype gives its own class the logit ``scale`` on average;
    a class without one always has the logit 0.
    """
    mean = prototypes[known].mean(0)
    rows = prototypes - mean if transform is None else (prototypes - mean) @ transform.T
    length = scale / torch.linalg.vector_norm(rows[known], dim=1).mean().clamp(min=1e-12)
    rows = torch.where(known[:, None], length * F.normalize(rows, dim=1), 0.0)
    head = rows if transform is None else rows @ transform
    return {"head": head, "head_bias": -head @ mean}


def class_means(sums: Sums) -> tuple[Tensor, Tensor]:
    """Return the class means ``[C, d]`` of all clients' images and the class counts ``[C]``."""
    counts = sums.total("holds")
    _check_known(counts)
    return sums.total("centroids").sum(0) / counts.clamp(min=1)[:, None], counts


def ridge_head(sums: Sums, ridge: float, bias: bool) -> dict[str, Tensor]:
    """Return the ridge regression of one-hot labels on vectors (Fed3R): ``(A + ridge I)^-1 B``.

    ``A`` is the sum of ``x x^T`` and ``B`` that of ``x y^T``, with a 1 appended to ``x`` for a bias.
    """
    gram, class_sums = whole(sums.tensors["moments"]), sums.tensors["centroids"].sum(0)
    counts, deviation = sums.tensors["holds"], sums.deviations.get("moments", 0.0)
    _check_known(counts)
    gram, inputs, offset = valid(gram, deviation), class_sums, bias and not deviation
    if offset:  # where there is noise, it would decide whether a matrix with this row is singular
        gram, inputs = _append_one(gram, class_sums, counts)
    gram.diagonal().add_(ridge)
    head = _unit_rows(_solved(gram, inputs.T).T, offset)
    if bias and not offset:
        head["head_bias"] = torch.zeros(len(counts))
    return _beside_priors(head, class_sums, counts) if deviation else head


def _solved(gram: Tensor, wanted: Tensor) -> Tensor:
    """Return ``gram^-1 wanted`` or, where moments swallowed the ridge, its least-squares solution.

    A client may claim moments beside which a ridge of 0.01 vanishes even in float64.
    """
    solution: Tensor
    solution, failed = torch.linalg.solve_ex(gram, wanted)
    if failed or not solution.isfinite().all():
        solution = torch.linalg.pinv(gram, hermitian=True) @ wanted
    return solution


def _beside_priors(head: dict[str, Tensor], class_sums: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Return a head times a factor with which a class's own mean is ``AHEAD`` on average.

    Published rows have length 1. Under differential privacy vectors are short, and logits of such rows vanish
    beside a log prior.
    """
    known, rows = counts > 0, head["head"].double()
    logits = class_sums[known] / counts[known, None] @ rows[known].T  # a bias puts ahead what it puts behind
    factor = AHEAD / (logits.diagonal() - logits.mean(1)).mean().clamp(min=1e-6)
    return {name: (factor * tensor.double()).float() for name, tensor in head.items()}


def scatter_of_means(sums: Sums) -> tuple[Tensor, Tensor]:
    """Return how far images lie from their class's mean, from the clients' class means alone (FedCOF).

    The sum over classes of ``(N_c - 1) S_c [d, d]`` and that of ``N_c - 1``, of classes that several
    clients hold. ``S_c = sum_k n_kc (mu_kc - mu_c)(mu_kc - mu_c)^T / (K_c - 1)`` over those ``K_c``.
    """
    class_sums, counts = sums.tensors["centroids"].sum(0), sums.tensors["holds"]
    holders = sum(
        (torch.eye(len(counts))[classes].sum(0) for classes, _, _ in _single(sums)), torch.zeros_like(counts)
    )
    several = holders > 1
    freedom = torch.where(several, (counts - 1).clamp(min=0), 0.0)
    means, weights = class_sums / counts.clamp(min=1)[:, None], freedom / (holders - 1).clamp(min=1)
    scatter = class_sums.new_zeros(2 * class_sums.shape[1:])
    for classes, number, own_means in _single(sums):
        apart = own_means - means[classes]
        scatter += (apart.T * (number * weights[classes])) @ apart
    return scatter, freedom.sum()


def covariance_of_means(sums: Sums) -> Tensor:
    """Return how images spread around their class's mean ``[d, d]``, from the clients' class means alone."""
    scatter, freedom = scatter_of_means(sums)
    return scatter / freedom.clamp(min=1)


def _single(sums: Sums) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield every client's classes, numbers of images and class means, of one part of its images each."""
    for own in sums.each:
        parts = own.tensors["centroids"].double()
        for place, rows in enumerate(parts):
            number = (own.tensors["holds"].double() + len(parts) - 1 - place) // len(parts)
            there = number > 0
            yield own.tensors["classes"][there], number[there], rows[there] / number[there, None]


def head_of_means(sums: Sums, shrinkage: float, bias: bool) -> dict[str, Tensor]:
    """Return the head ``pinv(G) s_c`` of class sums ``s_c`` (FedCOF).

    ``G = sum_c (N_c - 1) (S_c + shrinkage I) + N mu mu^T``.
    """
    class_sums, counts = sums.tensors["centroids"].sum(0), sums.tensors["holds"]
    _check_known(counts)
    mean = class_sums.sum(0) / counts.sum()
    gram = scatter_of_means(sums)[0] + counts.sum() * mean.outer(mean)
    gram.diagonal().add_(shrinkage * (counts - 1).clamp(min=0).sum())
    inputs = class_sums
    if bias:
        gram, inputs = _append_one(gram, class_sums, counts)
    head = _unit_rows(inputs @ torch.linalg.pinv(gram, hermitian=True), bias)
    return _beside_priors(head, class_sums, counts) if sums.deviations else head


def _append_one(gram: Tensor, class_sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``A [d + 1, d + 1]`` and class sums ``[C, d + 1]`` of the vectors with a 1 appended."""
    sums = torch.cat([class_sums, counts[:, None]], 1)
    total = sums.sum(0)
    return torch.cat([torch.cat([gram, total[None, :-1]]), total[:, None]], 1), sums


def _unit_rows(weights: Tensor, bias: bool) -> dict[str, Tensor]:
    """Return a head whose rows have length 1, from weights ``[C, d]`` or, with a bias, ``[C, d + 1]``.

    A class nobody holds has weights 0, and the logit 0.
    """
    rows = weights[:, :-1] if bias else weights
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    lengths = torch.where(lengths > 0, lengths, torch.inf)
    head = {"head": (rows / lengths).float()}
    return {**head, "head_bias": (weights[:, -1] / lengths[:, 0]).float()} if bias else head


def _check_known(counts: Tensor) -> None:
    if not (counts > 0).any():
        raise FedcueError(
            "No class is known of any client: there is nothing to make a head of. With privacy=dp "
            "the noise hides all classes: give a larger privacy.max_epsilon, or clients with more images."
        )
