"""Datasets without images: labels, owners and domains are all that a partition looks at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import NoImages


def made(
    labels: Sequence[int] | np.ndarray,
    is_test: Sequence[bool] | np.ndarray | None = None,
    *,
    owners: Sequence[int] | np.ndarray | None = None,
    domains: Sequence[int] | np.ndarray | None = None,
) -> Dataset:
    """Make a dataset of these labels; owners and domains are named after their numbers."""
    label = np.asarray(labels, dtype=np.int64)
    owner = None if owners is None else np.asarray(owners, dtype=np.int64)
    domain = None if domains is None else np.asarray(domains, dtype=np.int64)
    return Dataset(
        name="made",
        classes=tuple(f"class-{number}" for number in range(int(label.max()) + 1)),
        labels=label,
        is_test=np.zeros(len(label), dtype=np.bool_) if is_test is None else np.asarray(is_test, dtype=bool),
        images=NoImages("made", len(label)),
        owners=owner,
        owner_names=() if owner is None else tuple(f"owner-{number}" for number in range(owner.max() + 1)),
        domains=domain,
        domain_names=() if domain is None else tuple(f"domain-{n}" for n in range(domain.max() + 1)),
    )


def balanced(classes: int, train: int, test: int) -> Dataset:
    """Make a dataset with equally many images of every class."""
    labels = np.concatenate([np.repeat(np.arange(classes), train), np.repeat(np.arange(classes), test)])
    return made(labels, np.arange(len(labels)) >= classes * train)


CIFAR = balanced(100, 500, 100)
"""The sizes of CIFAR-100."""
