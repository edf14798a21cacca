"""What the tensors of a reply must be, by the method's table and the sizes that the client joined with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedcue.clients.roster import Roster
from fedcue.errors import ClientError
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.mechanisms import Privacy
from fedcue.secure.refusals import SecureSumError
from fedcue.secure.server import Server
from fedcue.types import Tensors, TensorSpec, TensorTable

LARGEST = 1e9
"""No honest weight, feature or loss is larger; sums and squares of such numbers are finite in float32."""
_MOST_NOISE = 50
"""Deviations of its own noise that a client may be away from what it could send without noise."""
_MOST_RECORD = 256
"""Bytes that a message of a secure sum may hold for each client at most."""
HEADER = 65536
"""Bytes that names and shapes may take beside the numbers."""


@dataclass(frozen=True)
class Expected:
    """What one kind of reply must hold: tensors, or else how many images of a part were right."""

    specs: tuple[TensorSpec, ...]
    privacy: Privacy
    epochs: int
    tested: Literal["test", "validation"] | None = None

    @property
    def most_bytes(self) -> int:
        """How many bytes a client's tensors may have at most."""
        sizes = [math.prod(map(_size, spec.shape)) * self._type(spec).itemsize for spec in self.specs]
        return sum(sizes) + HEADER

    def _type(self, spec: TensorSpec) -> torch.dtype:
        return self.privacy.upload_dtype(spec)

    def check(self, tensors: Tensors, images: int) -> None:
        """Raise a ``ClientError`` that names the first thing wrong with a client's tensors."""
        known = {spec.name: spec for spec in self.specs}
        for name in sorted(known.keys() - tensors.keys()):
            raise ClientError(f"its update has no {name}")
        for name, tensor in tensors.items():
            if name not in known:
                raise ClientError(f"its update has an unknown {name[:40]!r}")
            self._check_form(known[name], tensor)
        counted = [spec for spec in self.specs if spec.kind == "class_counts"]
        for spec in counted:
            self._check_counts(spec, tensors[spec.name], images)
        counts = tensors[counted[0].name].double() if counted else None
        for spec in self.specs:
            self._check_range(spec, tensors[spec.name], counts, images)

    def _check_form(self, spec: TensorSpec, tensor: Tensor) -> None:
        name, shape, dtype = spec.name, list(spec.shape), self._type(spec)
        if tensor.dtype != dtype:
            raise ClientError(f"its {name} is of type {tensor.dtype} instead of {dtype}")
        if list(tensor.shape) != shape:
            raise ClientError(f"its {name} has shape {list(tensor.shape)[:8]} instead of {shape}")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ClientError(f"its update of {name} is not finite")

    def _check_counts(self, spec: TensorSpec, counts: Tensor, images: int) -> None:
        """Refuse class counts below 0 or of more images than the client has."""
        noise = self._noise(spec)
        total = float(counts.double().sum())
        if not _within(counts.double(), -noise, images + noise) or total > images + noise * len(counts):
            raise ClientError(f"its {spec.name} count {total:.4g} images, but it joined with {images}")

    def _check_range(self, spec: TensorSpec, tensor: Tensor, counts: Tensor | None, images: int) -> None:
        """Refuse numbers that no client of so many images can have."""
        if spec.kind == "class_counts" or tensor.dtype == torch.bool:
            return
        low: float | Tensor | None = None
        if not tensor.is_floating_point():
            low, high = 0.0, float(images * self.epochs)
        elif spec.kind == "moments":
            high = images * LARGEST**2
        elif spec.kind == "class_sums":
            high = self._sums_limit(spec, counts, images)
        else:
            high = LARGEST + self._noise(spec)
        if not _within(tensor.double(), -high if low is None else low, high):
            raise ClientError(f"its {spec.name} holds numbers that cannot be: up to {_largest(tensor):.3g}")

    def _sums_limit(self, spec: TensorSpec, counts: Tensor | None, images: int) -> Any:
        """Return how large class sums may be: those of a class without images are zero."""
        noise = self._noise(spec)
        if noise or counts is None or spec.rows is None:
            return images * LARGEST + noise
        shape = [-1 if axis == spec.rows else 1 for axis in range(len(spec.shape))]
        return counts.view(shape) * LARGEST

    def _noise(self, spec: TensorSpec) -> float:
        """Return how far the client's own noise may take it from what it would have sent."""
        privacy = self.privacy
        if not isinstance(privacy, DifferentialPrivacy) or privacy.central or privacy.noise is None:
            return 0.0
        like = {s.name: torch.empty([_size(size) for size in s.shape], device="meta") for s in self.specs}
        return _MOST_NOISE * privacy.noise * privacy.moves(like, TensorTable(self.specs))[spec.name]


@dataclass(frozen=True)
class ExpectedMessage:
    """A message of a secure sum: the server's half of the protocol takes it, or says why not."""

    server: Server

    @property
    def most_bytes(self) -> int:
        """How many bytes a client's message may have at most: its words, or shares for all others."""
        session = self.server.session
        return HEADER + 8 * session.words + _MOST_RECORD * len(session.identities)

    def take(self, client: int, data: bytes) -> None:
        """Take the message of a client, or raise a ``ClientError`` that names what is wrong with it."""
        try:
            self.server.receive(client, data)
        except SecureSumError as error:
            raise ClientError(str(error)) from error


def expected_replies(roster: Roster) -> tuple[Expected, Expected, Expected]:
    """Return what is expected at the warm start, in a round and at a test."""
    privacy, uploads, epochs = roster.protection.privacy, roster.table.uploads, roster.config.training.epochs
    first = tuple(spec for spec in uploads if spec.replied)
    later = tuple(spec for spec in uploads if spec.returned)
    return (
        Expected(first, privacy.before_rounds(), epochs),
        Expected(later, privacy, epochs),
        Expected((), privacy, epochs, roster.config.evaluation.on),
    )


def _within(tensor: Tensor, low: float | Tensor, high: float | Tensor) -> bool:
    return bool(((tensor >= low) & (tensor <= high)).all())


def _largest(tensor: Tensor) -> float:
    return float(tensor.double().abs().max())


def _size(size: int | None) -> int:
    return size or 0
