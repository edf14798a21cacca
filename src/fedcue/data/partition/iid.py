"""Equal parts drawn at random: the classes of every client are those of the whole dataset."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcue.data.apportion import Counts, Integers, share_test, tally
from fedcue.data.dataset import Indices
from fedcue.data.partition.base import LabelSkew


class IID(LabelSkew):
    """Equal parts drawn at random."""

    name: ClassVar[str] = "iid"

    def counts(self, train: Indices, test: Indices, generator: np.random.Generator) -> Counts:
        """Deal the shuffled training images in turn; the test images follow the training counts."""
        return _deal_in_turn(train, test, self.clients, generator)


def _deal_in_turn(train: Integers, test: Integers, clients: int, generator: np.random.Generator) -> Counts:
    """Deal the shuffled training images in turn, so that client sizes differ by at most one."""
    labels = generator.permutation(np.repeat(np.arange(len(train)), train))
    client = np.arange(len(labels)) % clients
    counts = tally(client, labels, clients, len(train))
    return Counts(counts, share_test(counts, counts, test, generator))
