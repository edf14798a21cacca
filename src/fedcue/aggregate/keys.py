"""Keys of groups: orthogonal at first, then averaged by how often clients chose them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedcue.aggregate.mean import Sums
from fedcue.types import Update

PLAIN = ("keys", "counts", "counted_keys")
"""Tensors that enter the sums as they are, whatever the weights of the clients."""

RARE = 50
"""A group chosen at most so often in a round takes the plain mean of the clients' keys."""


def orthonormal(rows: Tensor) -> Tensor:
    """Make ``rows [n, d]`` orthogonal in their order (Gram-Schmidt) and of length one."""
    q, r = torch.linalg.qr(rows.double().T)
    signed: Tensor = q * r.diagonal().sign()
    return signed.T.float().contiguous()


def count_keys(update: Update) -> Update:
    """Add to an update its keys times the client's choices, whose sum the server needs."""
    counted = update.tensors["keys"] * update.tensors["counts"][:, None]
    return replace(update, tensors={**update.tensors, "counted_keys": counted})


def mean_keys(sums: Sums) -> Tensor:
    """Return the mean of the clients' keys ``[K, d]``, each weighed by its choices."""
    counts = sums.tensors["counts"][:, None]
    by_choice = sums.tensors["counted_keys"] / counts.clamp(min=1)
    return torch.where(counts > RARE, by_choice, sums.tensors["keys"] / sums.updates).float()
