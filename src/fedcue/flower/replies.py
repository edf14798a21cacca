"""What a client's reply must look like, by the method's table; anything else is left out by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from fedcue.clients.roster import Roster
from fedcue.errors import ClientError
from fedcue.privacy.mechanisms import Privacy
from fedcue.types import Tensors, TensorSpec

HEADER = 65536
"""Bytes that names and shapes may take beside the numbers."""


@dataclass(frozen=True)
class Expected:
    """Shapes and types of the tensors in one kind of reply, by name."""

    shapes: dict[str, tuple[int | None, ...]]
    types: dict[str, torch.dtype]

    @classmethod
    def of(cls, specs: Iterable[TensorSpec], privacy: Privacy) -> Expected:
        """Return what is expected of these tensors as they leave a client."""
        uploads = list(specs)
        return cls(
            {spec.name: spec.shape for spec in uploads},
            {spec.name: privacy.upload_dtype(spec) for spec in uploads},
        )

    @classmethod
    def nothing(cls) -> Expected:
        """Expect no tensors."""
        return cls({}, {})

    @property
    def most_bytes(self) -> int:
        """How many bytes a reply may have at most."""
        numbers = 0
        for name, shape in self.shapes.items():
            numbers += torch.Size([size or 0 for size in shape]).numel() * self.types[name].itemsize
        return numbers + HEADER

    def check(self, tensors: Tensors) -> None:
        """Raise a ``ClientError`` that names the first thing that is wrong."""
        for name in self.shapes.keys() - tensors.keys():
            raise ClientError(f"its update has no {name}")
        for name, tensor in tensors.items():
            if name not in self.shapes:
                raise ClientError(f"its update has an unknown {name[:40]!r}")
            shape, dtype = list(self.shapes[name]), self.types[name]
            if tensor.dtype != dtype:
                raise ClientError(f"its {name} is of type {tensor.dtype} instead of {dtype}")
            if list(tensor.shape) != shape:
                raise ClientError(f"its {name} has shape {list(tensor.shape)} instead of {shape}")
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ClientError(f"its update of {name} is not finite")


def expected_replies(roster: Roster) -> tuple[Expected, Expected]:
    """Return what is expected at the warm start and in a round."""
    privacy, uploads = roster.protection.privacy, roster.table.uploads
    return (
        Expected.of([spec for spec in uploads if spec.replied], privacy),
        Expected.of([spec for spec in uploads if spec.returned], privacy),
    )
