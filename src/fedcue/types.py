"""The frozen objects that travel between server and clients: named tensors and a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, device

Tensors = Mapping[str, Tensor]
"""Named tensors; the names are the paper's nouns (``head``, ``shared_prompts``, ``prototypes``)."""

Kind = Literal["shared", "own", "class_sums", "class_counts"]
"""What an uploaded tensor is: a trained copy of one that all clients were sent, or that only this
client was sent; or statistics of the client's images by class."""


@dataclass(frozen=True)
class Setting:
    """The sizes a method needs to make its tensors."""

    classes: int
    width: int
    depth: int
    patch: int
    clients: int
    domains: int = 1


@dataclass(frozen=True)
class ServerState:
    """Everything the server knows: the method's tensors after ``round`` finished rounds."""

    round: int
    tensors: Tensors


@dataclass(frozen=True)
class Download:
    """What the server sends to one client at the start of a round."""

    client: int
    round: int
    seed: int
    tensors: Tensors


@dataclass(frozen=True)
class Update:
    """What one client sends back: its tensors, how many samples it has, its mean training loss."""

    client: int
    samples: int
    tensors: Tensors
    loss: float | None = None


@dataclass(frozen=True)
class ClientMemory:
    """What stays at the client between its visits and is never sent."""

    tensors: Tensors = field(default_factory=dict)


def moved(tensors: Tensors, to: device | str) -> dict[str, Tensor]:
    """Return ``tensors`` on a device; those that are there already are not copied."""
    return {name: tensor.to(to) for name, tensor in tensors.items()}


def count_floats(tensors: Tensors) -> int:
    """Count the floating-point numbers in ``tensors`` (masks and counters are not floats)."""
    return sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())


def count_bytes(tensors: Tensors) -> int:
    """Count the bytes of ``tensors`` as they would travel, masks and counters included."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def pack(tensors: Tensors) -> bytes:
    """Return ``tensors`` as the bytes of a safetensors file: what crosses a process or a network."""
    from safetensors.torch import save

    return save({name: tensor.contiguous() for name, tensor in tensors.items()})


def unpack(data: bytes) -> dict[str, Tensor]:
    """Return the tensors in the bytes of a safetensors file, in order of their names.

    The file's own order is lost in reading, and sums over tensors (the norm of a gradient) depend on
    it in the last bit. They are copied into torch's own, aligned memory.
    """
    from safetensors.torch import load

    tensors = load(data)
    return {name: tensors[name].clone() for name in sorted(tensors)}
