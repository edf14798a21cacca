"""Clients that compute in float64, so that ways to the same numbers differ by next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from fedcue.clients.host import Host, Visit
from fedcue.types import ClientMemory, Download, TensorTable


def doubled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with their floats in float64."""
    return {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}


class DoubleHost(Host):
    """Clients that compute, and send, in float64."""

    def __post_init__(self) -> None:
        super().__post_init__()
        specs = [
            replace(spec, first=lambda seed, first=spec.first: doubled({"": first(seed)})[""])
            if spec.first
            else spec
            for spec in self.table
        ]
        self.table = TensorTable(tuple(specs))

    def arrive(self, download: Download, memory: ClientMemory) -> Visit:
        return super().arrive(replace(download, tensors=doubled(download.tensors)), memory)

    def prepare_test(self, clients, download, *rest):
        return super().prepare_test(clients, replace(download, tensors=doubled(download.tensors)), *rest)
