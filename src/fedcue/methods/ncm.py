"""NCM: no training at all; the head is the clients' class means of the final cls token (FedNCM)."""

from __future__ import annotations

from typing import ClassVar

from fedcue.methods.statistics_head import PrototypeHead, Untrained


class NCM(PrototypeHead, Untrained):
    """Nearest class mean: every client sends its class sums once, before round 0, and that is all."""

    name: ClassVar[str] = "ncm"
