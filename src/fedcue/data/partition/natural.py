"""The clients that the data itself has: a user, a camera, a hospital."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from fedcue.data.apportion import by_owner
from fedcue.data.dataset import Dataset
from fedcue.data.partition.base import Partition, PartitionOptions, assemble
from fedcue.errors import PartitionError


class Natural(PartitionOptions):
    """One client per owner of the images: a user, a camera, a hospital."""

    name: ClassVar[str] = "natural"

    min_train: PositiveInt = Field(16, description="owners with fewer training images are left out")
    min_test: PositiveInt = Field(1, description="owners with fewer test images are left out")
    clients: PositiveInt | None = Field(None, description="draw this many of the owners; all by default")

    @property
    def planned_clients(self) -> int | None:
        """As many as were asked for."""
        return self.clients

    def split(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Give every owner with enough images its own, and leave the others out."""
        if dataset.owners is None:
            raise PartitionError(
                f"Dataset {dataset.name!r} does not say whose the images are. Use another partition, a "
                "federated folder, or name the client column with data.client."
            )
        number = len(dataset.owner_names)
        train = by_owner(np.where(dataset.is_test, -1, dataset.owners), number)
        test = by_owner(np.where(dataset.is_test, dataset.owners, -1), number)
        sizes = [(len(train[owner]), len(test[owner])) for owner in range(number)]
        chosen = [k for k, (a, b) in enumerate(sizes) if a >= self.min_train and b >= self.min_test]
        wanted = 1 if self.clients is None else self.clients
        if len(chosen) < wanted:
            raise PartitionError(
                f"{len(chosen)} of {number} owners have at least {self.min_train} training and "
                f"{self.min_test} test images, {wanted} are needed. Lower partition.min_train, "
                "partition.min_test or partition.clients."
            )
        if self.clients is not None:
            chosen = sorted(generator.choice(chosen, self.clients, replace=False).tolist())
        names = [dataset.owner_names[owner] for owner in chosen]
        return assemble(dataset, [train[k] for k in chosen], [test[k] for k in chosen], names)
