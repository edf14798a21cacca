"""FedCOF: no training at all; a covariance is estimated from how the clients' class means differ."""

from __future__ import annotations

from typing import ClassVar

import fedcue.methods as fm
from fedcue.aggregate.closed_form import head_of_means
from fedcue.methods.statistics_head import PARTS, Untrained, class_statistics


class FedCOF(Untrained):
    """Ridge regression with a covariance from class means alone: no second moments are sent.

    The server needs every client's own means, not only their sum. The estimate is unbiased where images
    of a class are alike at all clients.
    """

    name: ClassVar[str] = "fedcof"

    parts: int = fm.Field(default=1, ge=1, le=1000, description=PARTS)
    shrinkage: float = fm.Field(default=1.0, ge=0, description="added to the diagonal of covariances (gamma)")

    def replies(self, sizes: fm.Sizes) -> list[fm.TensorSpec]:
        """Declare class sums and counts, ``C_k d + C_k`` numbers: the server needs every client's own."""
        return class_statistics(sizes, each=True, parts=self.parts)

    def head(self, sums: fm.Sums) -> fm.Tensors:
        """Return ``pinv(G) s_c``, each class's weights of length 1."""
        return head_of_means(sums, self.shrinkage, self.head_bias)
