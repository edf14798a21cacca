"""Few classes per client: every client holds some of the classes, every class has similarly many owners."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from fedcue.data.apportion import Counts, largest_remainder, share_test
from fedcue.data.dataset import Indices
from fedcue.data.partition.base import LabelSkew
from fedcue.errors import PartitionError


class Pathological(LabelSkew):
    """Every client holds ``classes_per_client`` classes; every class is held by equally many clients."""

    name: ClassVar[str] = "pathological"

    classes_per_client: PositiveInt = Field(description="number of classes a client holds")

    def counts(self, train: Indices, test: Indices, generator: np.random.Generator) -> Counts:
        """Draw the owners of each class, then similar shares of it for each of them.

        Shares are drawn from U(0.4, 0.6) and normalised; training and test images use the same shares.
        The largest is one and a half times the smallest at most: of as many images as owners, each gets one.
        """
        present = np.flatnonzero(train)
        owned = draw_owners(len(present), self.clients, self.classes_per_client, generator)
        weights = np.zeros((self.clients, len(train)))
        weights[:, present] = np.where(owned, generator.uniform(0.4, 0.6, owned.shape), 0.0)
        counts = largest_remainder(weights, train, generator)
        return Counts(counts, share_test(np.where(counts > 0, weights, 0.0), counts, test, generator))


def draw_owners(
    classes: int, clients: int, classes_per_client: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw which classes each client holds, ``[clients, classes]``.

    Clients in turn take the classes with the fewest owners so far (the most slots left), ties drawn at
    random, no class twice. Owner counts therefore never differ by more than one.
    """
    if classes_per_client > classes:
        raise PartitionError(
            f"classes_per_client={classes_per_client}, but only {classes} classes have training images. Give "
            f"at most {classes}."
        )
    if clients * classes_per_client < classes:
        raise PartitionError(
            f"{clients} clients with {classes_per_client} classes each hold at most "
            f"{clients * classes_per_client} of {classes} classes, so some images would belong to nobody. "
            f"Use at least {-(-classes // classes_per_client)} clients or {-(-classes // clients)} classes "
            "per client."
        )
    owned = np.zeros((clients, classes), dtype=np.bool_)
    owners = np.zeros(classes)
    for client in range(clients):
        order = np.argsort(owners + generator.random(classes))  # whole numbers rank, fractions break ties
        taken = order[:classes_per_client]
        owned[client, taken] = True
        owners[taken] += 1
    return owned
