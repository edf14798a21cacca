"""All training images in one place, as no federation has them: for the bound that pooling gives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from fedcue.data.clients import ClientData
from fedcue.data.dataset import Indices


@dataclass(frozen=True, eq=False)
class Pool:
    """The training images of all clients that train, and of how many clients they are."""

    like: ClientData
    """A client whose other images the pool's parts have; nobody looks at them."""
    images: Indices
    labels: Indices
    clients: int

    @classmethod
    def of(cls, clients: Iterable[ClientData]) -> Pool:
        """Pool what clients train on; those held out give nothing."""
        training = [client for client in clients if not client.heldout]
        images = np.concatenate([client.train for client in training])
        labels = np.concatenate([client.train_labels for client in training])
        return cls(training[0], images, labels, len(training))

    def drawn(self, visits: int, generator: np.random.Generator) -> ClientData:
        """Draw as many different images as so many clients have, evenly from all."""
        size = max(1, round(len(self.images) * visits / self.clients))
        chosen = np.sort(generator.choice(len(self.images), size=size, replace=False))
        labels = self.labels[chosen]
        counts = np.bincount(labels, minlength=len(self.like.class_priors))
        return replace(
            self.like, train=self.images[chosen], train_labels=labels, class_priors=counts / len(labels)
        )
