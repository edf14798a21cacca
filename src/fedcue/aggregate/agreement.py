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
        values = torch.stack([_change(update, reference, name) for update in updates])
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
    rows, holds = _rows(changes)
    few = (rows * _row_scales(rows)).sum(0)
    holders = holds.sum(0)[:, None]
    return torch.where(holders < FEW, few, _middle(rows, holds, trim) * holders).reshape(changes.shape[1:])


def statistic(values: Tensor, trim: int, attackers: int) -> Tensor:
    """Return, per row of class statistics ``[n, ..., d]``, its holders times what stands for their mean.

    Anybody may claim to hold a class. Where its holders cannot be mostly liars, the trimmed mean is taken.
    Where they can, the ``attackers`` holders go (but one stays) who differ most from others in whatever
    they both hold.
    """
    rows, holds = _rows(values)
    holders = holds.sum(0)  # [R]
    order = strangeness(rows, holds, attackers).argsort(stable=True)
    places = holds[order].cumsum(0)  # the least strange holder of a row comes first
    kept = holds[order] & (places <= (holders - attackers).clamp(min=1))
    trusted = (rows[order] * kept[..., None]).sum(0) / kept.sum(0).clamp(min=1)[:, None]
    mean = torch.where((holders > 2 * attackers)[:, None], _middle(rows, holds, trim), trusted)
    return (mean * holders[:, None]).reshape(values.shape[1:])


def strangeness(rows: Tensor, holds: Tensor, attackers: int) -> Tensor:
    """Return how far each client's ``rows [n, R, d]`` are from others', but for the ``attackers`` farthest.

    Two clients are compared in the rows that both hold, relative to the length of these. Liars may agree with
    each other: they are too few to make up for all those they differ from.
    """
    squares = rows.square().sum(-1)  # [n, R]
    sums = squares[:, None] + squares
    apart = (sums - 2 * torch.einsum("ird,jrd->ijr", rows, rows)) / sums.clamp(
        min=torch.finfo(sums.dtype).tiny
    )
    both = holds[:, None] & holds  # [n, n, R]
    shared = both.sum(-1).fill_diagonal_(0)
    pairs = (apart.clamp(min=0).sqrt() * both).sum(-1) / shared  # [n, n]; no number where nothing is shared
    ordered = pairs.masked_fill(shared == 0, torch.inf).sort(1).values
    others = (~ordered.isinf()).sum(1)
    kept = torch.arange(len(rows), device=rows.device) < (others - attackers).clamp(min=1)[:, None]
    near = ordered.masked_fill(~kept | ordered.isinf(), 0).sum(1)
    return near / torch.minimum(kept.sum(1), others).clamp(min=1)


def _rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows ``[n, R, d]`` of ``values [n, ..., d]`` and who holds them ``[n, R]``."""
    width = values.shape[-1] if values.ndim > 2 else 1
    rows = values.double().reshape(len(values), -1, width)
    return rows, (rows != 0).any(-1)


def _middle(rows: Tensor, holds: Tensor, trim: int) -> Tensor:
    """Return the trimmed mean ``[R, d]`` over each row's holders, of whom one or two always stay."""
    holders = holds.sum(0)  # [R]
    ordered = rows.masked_fill(~holds[..., None], torch.inf).sort(0).values
    cut = ((holders - 1) // 2).clamp(min=0, max=trim)
    place = torch.arange(len(rows), device=rows.device)[:, None]
    kept = (place >= cut) & (place < holders - cut)  # [n, R]
    return ordered.masked_fill(~kept[..., None], 0).sum(0) / (holders - 2 * cut).clamp(min=1)[:, None]


def bounded(updates: Sequence[Update], reference: Tensors, bound: float | Literal["median"]) -> list[Update]:
    """Shorten every change to at most ``bound``, or to the median length of the changes given.

    Clients that did not move count for the median: it is the length of a majority, whatever others send.
    What is no change (centroids) is shortened row by row to the median length of its rows.
    """
    names = changed(updates, reference)
    factors = _factors(updates, reference, bound) if names else []
    tensors = [dict(update.tensors) for update in updates]
    for name in names:
        start = reference[name].double()
        for own, update, factor in zip(tensors, updates, factors, strict=True):
            own[name] = start + factor * torch.nan_to_num(_change(update, reference, name), nan=0.0)
    for name in _beside(updates, reference):
        stacked = torch.stack([own[name].double() for own in tensors])
        if stacked.ndim < 3:  # counts, or who holds a class
            continue
        for own, value in zip(tensors, stacked * _row_scales(stacked), strict=True):
            own[name] = value
    return [replace(update, tensors=own) for update, own in zip(updates, tensors, strict=True)]


def by_row(
    updates: Sequence[Update],
    reference: Tensors,
    table: TensorTable,
    trim: int,
    attackers: int,
    mixing: Tensor | None = None,
) -> Sums:
    """Return sums that stand for the row-wise statistics: what was sent down, n times, plus changes.

    Every client counts alike. With ``trim=0`` these are the plain sums wherever a row has at least
    three holders.
    """
    sums = Sums(table, weight=float(len(updates)), updates=len(updates))
    for name in changed(updates, reference):
        values = torch.stack([_change(update, reference, name) for update in updates])
        values = torch.nan_to_num(values, nan=0.0)
        if mixing is not None:
            values = (mixing @ values.flatten(1)).view_as(values)
        sums.tensors[name] = len(updates) * reference[name].double() + rowwise(values, trim)
    sums.tensors |= statistics(updates, reference, trim, attackers)
    return sums


def statistics(updates: Sequence[Update], reference: Tensors, trim: int, attackers: int) -> dict[str, Tensor]:
    """Return what stands for the sums of what is no change: class statistics and who has them."""
    found = {}
    for name in _beside(updates, reference):
        values = torch.stack([update.tensors[name].double() for update in updates])
        found[name] = statistic(torch.nan_to_num(values, nan=0.0), trim, attackers)
    return found


def changed(updates: Sequence[Update], reference: Tensors) -> list[str]:
    """Return the names of the tensors that are trained copies of what was sent down."""
    first, *_ = updates
    return [name for name in first.tensors if name in reference]


def _change(update: Update, reference: Tensors, name: str) -> Tensor:
    """Return how far a client moved what it was sent."""
    return update.tensors[name].double() - reference[name].double()


def _beside(updates: Sequence[Update], reference: Tensors) -> list[str]:
    """Return the names of all other tensors."""
    first, *_ = updates
    return [name for name in first.tensors if name not in reference]


def _factors(updates: Sequence[Update], reference: Tensors, bound: float | Literal["median"]) -> list[Tensor]:
    """Return by what to multiply each client's change so that none is longer than the bound."""
    lengths = torch.stack([_flat_change(update, reference).norm() for update in updates])
    limit = torch.quantile(lengths, 0.5) if bound == "median" else torch.tensor(bound)
    return list(torch.nan_to_num((limit / lengths).clamp(max=1), nan=1.0))


def _flat_change(update: Update, reference: Tensors) -> Tensor:
    """Return all of an update's changes as one vector; what is no number counts as very large."""
    names = [name for name in update.tensors if name in reference]
    parts = [_change(update, reference, name).flatten() for name in names]
    return torch.nan_to_num(torch.cat(parts), nan=torch.finfo(torch.float64).max)


def _row_scales(rows: Tensor) -> Tensor:
    """Return the factors ``[..., 1]`` that shorten ``rows [..., d]`` to the median length of them."""
    lengths = rows.norm(dim=-1)
    scales: Tensor = (_median(lengths) / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1)
    return scales[..., None]


def _median(lengths: Tensor) -> Tensor:
    """Return the median of the lengths that are not zero, without limit if all are."""
    positive = lengths[lengths > 0]
    return torch.quantile(positive, 0.5) if len(positive) else lengths.new_tensor(torch.inf)
