"""Ways to share a dataset out among clients, one module for each."""

from __future__ import annotations

from fedcue.data.partition.base import LabelSkew, Partition, PartitionOptions
from fedcue.data.partition.dirichlet import Dirichlet
from fedcue.data.partition.domain import ByDomain
from fedcue.data.partition.drawn import Drawn
from fedcue.data.partition.iid import IID
from fedcue.data.partition.natural import Natural
from fedcue.data.partition.pathological import Pathological

__all__ = [
    "IID",
    "ByDomain",
    "Dirichlet",
    "Drawn",
    "LabelSkew",
    "Natural",
    "Partition",
    "PartitionOptions",
    "Pathological",
]
