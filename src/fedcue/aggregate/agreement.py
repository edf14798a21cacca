"""The changes of several clients: by row, by length, and how well they agree with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedcue.aggregate.mean import Sums
from fedcue.types import Tensors, TensorTable, Update

FEW = 3
"""Below so many holders of a row there is no majority: the mean of bounded changes is taken."""

LARGE = 0.5
"""Share of a client's largest row in a tensor from which on a row counts as large."""


def agreement(updates: Sequence[Update], reference: Tensors) -> Tensor:
    """Return how far the changes of any two clients agree, ``[n, n]`` from -1 to 1.

    Whole changes of clients with different classes are almost orthogonal, whatever they intend.
    But a client moves the rows of its own classes far and the others a little, so that two clients
    are compared by the mean cosine of those rows which are large for both or small for both.
    """
    clients = len(updates)
    total = torch.zeros(clients, clients, dtype=torch.float64)
    count = torch.zeros_like(total)
    for name in changed(updates, reference):
        start = reference[name].double()
        values = torch.stack([update.tensors[name].double() - start for update in updates])
        rows = torch.nan_to_num(values, nan=0.0).reshape(clients, -1, values.shape[-1])  # [n, R, d]
        lengths = rows.norm(dim=-1)
        unit = rows / lengths.clamp(min=torch.finfo(torch.float64).tiny)[..., None]
        large, there = lengths >= LARGE * lengths.amax(1, keepdim=True), lengths > 0
        comparable = (large[:, None] == large) & there[:, None] & there  # [n, n, R]
        total += (torch.einsum("ird,jrd->ijr", unit, unit) * comparable).sum(-1)
        count += comparable.sum(-1)
    return total / count.clamp(min=1)


def krum(agreements: Tensor, attackers: int, keep: int) -> list[int]:
    """Return which ``keep`` clients agree best with their ``n - attackers - 2`` nearest others."""
    clients = len(agreements)
    others = agreements.clone().fill_diagonal_(-torch.inf).sort(1, descending=True).values
    scores = others[:, : max(clients - attackers - 2, 1)].sum(1)
    return sorted(scores.argsort(descending=True, stable=True)[:keep].tolist())


def nearest(agreements: Tensor, count: int) -> Tensor:
    """Return the matrix ``[n, n]`` that averages each client with those it agrees with most."""
    own_first = agreements.clone().fill_diagonal_(torch.inf)
    chosen = own_first.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(agreements).scatter_(1, chosen, 1 / count)


def rowwise(changes: Tensor, trim: int) -> Tensor:
    """Return, per row of ``changes [n, ..., d]``, its holders times their trimmed mean.

    ``trim`` largest and smallest values go in each coordinate, but always one or two stay: a large
    ``trim`` gives the median. Rows with few holders take the mean of changes that are not longer
    than the median row of the tensor.
    """
    clients, width = len(changes), changes.shape[-1] if changes.ndim > 2 else 1
    rows = changes.double().reshape(clients, -1, width)  # [n, R, d]
    holds = (rows != 0).any(-1)  # [n, R]
    holders = holds.sum(0)  # [R]
    ordered = rows.masked_fill(~holds[..., None], torch.inf).sort(0).values
    cut = ((holders - 1) // 2).clamp(min=0, max=trim)
    place = torch.arange(clients, device=rows.device)[:, None]
    kept = (place >= cut) & (place < holders - cut)  # [n, R]
    middle = ordered.masked_fill(~kept[..., None], 0).sum(0) / (holders - 2 * cut).clamp(min=1)[:, None]
    few = (rows * _row_scales(rows)).sum(0)
    total = torch.where((holders < FEW)[:, None], few, middle * holders[:, None])
    return total.reshape(changes.shape[1:])


def bounded(updates: Sequence[Update], reference: Tensors, bound: float | Literal["median"]) -> list[Update]:
    """Shorten every change to at most ``bound``, or to the median length of the changes given.

    What is no change (centroids) is shortened row by row to the median length of its rows.
    """
    names = changed(updates, reference)
    lengths = torch.stack([flat_change(update, reference).norm() for update in updates])
    limit = _median(lengths) if bound == "median" else torch.tensor(bound)
    factors = torch.nan_to_num((limit / lengths).clamp(max=1), nan=1.0)
    others = [name for name, tensor in updates[0].tensors.items() if name not in names and tensor.ndim > 1]
    tensors = [dict(update.tensors) for update in updates]
    for name in names:
        start = reference[name].double()
        for own, factor in zip(tensors, factors, strict=True):
            own[name] = start + factor * torch.nan_to_num(own[name].double() - start, nan=0.0)
    for name in others:
        stacked = torch.stack([own[name].double() for own in tensors])
        rows = stacked.reshape(len(tensors), -1, stacked.shape[-1])
        for own, value in zip(tensors, (rows * _row_scales(rows)).reshape(stacked.shape), strict=True):
            own[name] = value
    return [replace(update, tensors=own) for update, own in zip(updates, tensors, strict=True)]


def by_row(
    updates: Sequence[Update],
    reference: Tensors,
    table: TensorTable,
    trim: int,
    mixing: Tensor | None = None,
) -> Sums:
    """Return sums that stand for the row-wise statistics: what was sent down, n times, plus changes.

    Every client counts alike. With ``trim=0`` these are the plain sums wherever a row has at least
    three holders.
    """
    names = changed(updates, reference)
    sums = Sums(table, weight=float(len(updates)), updates=len(updates))
    for name in updates[0].tensors:
        values = torch.stack([update.tensors[name].double() for update in updates])
        start = reference[name].double() if name in names else torch.zeros_like(values[0])
        values = torch.nan_to_num(values - start, nan=0.0)
        if mixing is not None and name in names:
            values = (mixing @ values.flatten(1)).view_as(values)
        sums.tensors[name] = len(updates) * start + rowwise(values, trim)
    return sums


def changed(updates: Sequence[Update], reference: Tensors) -> list[str]:
    """Return the names of the tensors that are trained copies of what was sent down."""
    return [name for name in updates[0].tensors if name in reference]


def flat_change(update: Update, reference: Tensors) -> Tensor:
    """Return all of an update's changes as one vector; what is no number counts as very large."""
    names = [name for name in update.tensors if name in reference]
    parts = [(update.tensors[name].double() - reference[name].double()).flatten() for name in names]
    flat = torch.cat(parts) if parts else torch.zeros(1, dtype=torch.float64)
    return torch.nan_to_num(flat, nan=torch.finfo(torch.float64).max)


def _row_scales(rows: Tensor) -> Tensor:
    """Return the factors ``[n, R, 1]`` that shorten ``rows [n, R, d]`` to the median length of them."""
    lengths = rows.norm(dim=-1)
    scales: Tensor = (_median(lengths) / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1)
    return scales[..., None]


def _median(lengths: Tensor) -> Tensor:
    """Return the median of the lengths that are not zero."""
    positive = lengths[lengths > 0]
    return torch.quantile(positive, 0.5) if len(positive) else lengths.new_tensor(1.0)
