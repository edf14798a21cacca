"""Datasets, partitions and clients: from files on disk to each client's index arrays."""

from __future__ import annotations

from fedcue.data.clients import ClientData, drop_images, make_clients
from fedcue.data.dataset import Dataset, ImageSource
from fedcue.data.options import DataOptions
from fedcue.data.partition import Partition, PartitionOptions

__all__ = [
    "ClientData",
    "DataOptions",
    "Dataset",
    "ImageSource",
    "Partition",
    "PartitionOptions",
    "drop_images",
    "make_clients",
]
