"""Equal parts drawn at random: the classes of every client are those of the whole dataset."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcue.data.apportion import Counts, share_test, tally
from fedcue.data.dataset import Indices
from fedcue.data.partition.base import LabelSkew


class IID(LabelSkew):
    """Equal parts drawn at random."""

    name: ClassVar[str] = "iid"

    def counts(self, train: Indices, test: Indices, generator: np.random.Generator) -> Counts:
        """Deal the shuffled training images in turn: client sizes differ by at most one.

        The test images follow the training counts.
        """
        labels = generator.permutation(np.repeat(np.arange(len(train)), train))
        counts = tally(np.arange(len(labels)) % self.clients, labels, self.clients, len(train))
        return Counts(counts, share_test(counts, counts, test, generator))
