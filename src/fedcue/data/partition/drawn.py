"""Any number of clients on one dataset: each draws its images when it is asked for them.

A partition shares images out, so that there cannot be more clients than images. Here every client draws
from all images, as a person takes pictures of what everybody sees: two clients may hold the same image,
one client never holds it twice. Nothing is stored per client, so that a million cost no more than ten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from fedcue.data.dataset import Computed, Dataset, Indices
from fedcue.data.partition.base import Partition, PartitionOptions
from fedcue.errors import PartitionError
from fedcue.rng import rng


class Drawn(PartitionOptions):
    """Clients that draw from all images, each with its own Dirichlet proportions of the classes."""

    name: ClassVar[str] = "drawn"

    clients: PositiveInt = Field(description="number of clients, any")
    train: PositiveInt = Field(20, description="training images of each client")
    test: PositiveInt = Field(5, description="test images of each client")
    alpha: float = Field(0.3, gt=0, description="small: few classes per client; large: nearly iid")

    @property
    def planned_clients(self) -> int:
        """As many as were asked for."""
        return self.clients

    def share(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Return a partition whose clients are drawn on demand."""
        supplies = {"train": (self.train, len(dataset.train)), "test": (self.test, len(dataset.test))}
        for part, (wanted, there) in supplies.items():
            if wanted > there:
                raise PartitionError(
                    f"partition.{part}={wanted}, but {dataset.name} has only {there} {part} images. "
                    f"Give at most {there}."
                )
        draw = Draw(dataset, self, int(generator.integers(2**63)))
        return DrawnPartition(
            train=Computed(self.clients, draw.train),
            test=Computed(self.clients, draw.test),
            names=Computed(self.clients, "client-{}".format),
            domains=Computed(self.clients, lambda client: ""),
            draw=draw,
        )


class Draw:
    """What a client draws: from the pool of all images, by a random stream of its own."""

    def __init__(self, dataset: Dataset, options: Drawn, seed: int) -> None:
        self.options, self.seed = options, seed
        self.pools = {"train": dataset.train, "test": dataset.test}
        self.labels = {part: dataset.labels[pool] for part, pool in self.pools.items()}
        self.classes = len(dataset.classes)
        counts = {part: np.bincount(labels).astype(np.float64) for part, labels in self.labels.items()}
        self.rarity = {part: np.reciprocal(counts[part][labels]) for part, labels in self.labels.items()}

    def train(self, client: int) -> Indices:
        """Return the client's training images, sorted."""
        return self._part("train", client, self.options.train)

    def test(self, client: int) -> Indices:
        """Return the client's test images, sorted."""
        return self._part("test", client, self.options.test)

    def _part(self, part: Literal["train", "test"], client: int, count: int) -> Indices:
        proportions = rng(self.seed, "classes", client).dirichlet(np.full(self.classes, self.options.alpha))
        chances = proportions[self.labels[part]] * self.rarity[part] + 1e-12  # any image, if need be
        drawn = rng(self.seed, part, client).choice(
            self.pools[part], size=count, replace=False, p=chances / chances.sum()
        )
        return np.sort(drawn)


@dataclass(frozen=True, eq=False)
class DrawnPartition(Partition):
    """A partition computed on demand."""

    draw: Draw = field(kw_only=True)
    shares_images: ClassVar[bool] = True

    @property
    def train_sizes(self) -> Indices:
        """The same number for all."""
        return np.broadcast_to(np.int64(self.draw.options.train), len(self))

    @property
    def test_sizes(self) -> Indices:
        """The same number for all."""
        return np.broadcast_to(np.int64(self.draw.options.test), len(self))

    def pool(self, part: Literal["train", "test"]) -> Indices:
        """Return all images of the dataset: any of them may be drawn."""
        return self.draw.pools[part]
