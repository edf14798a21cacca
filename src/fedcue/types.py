"""What travels between server and clients, how a method declares it, and its one encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, device

Tensors = Mapping[str, Tensor]
"""Named tensors; the names are the paper's nouns (``head``, ``shared_prompts``, ``prototypes``)."""

Kind = Literal["shared", "own", "class_sums", "class_counts", "moments"]
"""What an uploaded tensor is for privacy and robust rules: a trained copy of one that all clients were
sent (``shared``), a change of one that only this client was sent (``own``), or statistics of its images."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of model and task from which a method's tensors follow."""

    classes: int
    width: int
    depth: int
    patch: int
    clients: int
    domains: int = 1


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a method, declared once: everything else is derived from this line."""

    name: str
    shape: tuple[int | None, ...]
    """Sizes by axis; ``None`` where there is a row for each client visited so far."""
    first: Callable[[int], Tensor] | None = None
    """From the seed to the value before round 0; none if the method's ``start`` makes it."""
    stored: bool = False
    """The server keeps it between rounds."""
    sent: bool = False
    """A client is sent it at the start of a visit."""
    trained: bool = False
    """A client trains it."""
    returned: bool = False
    """A client sends it back after a visit."""
    replied: bool = False
    """A client sends it before round 0."""
    kept: bool = False
    """A client keeps it between visits and never sends it."""
    rows: int | None = None
    """The class axis, where a client needs and changes only its own classes' rows."""
    seldom: bool = False
    """It changes in few rounds."""
    weighted: bool = True
    """The clients' weights apply to it in sums; otherwise each client counts once."""
    each: bool = False
    """The server needs every client's own, beside the sum."""
    kind: Kind | None = None
    """Privacy and robust rules refuse an upload without a kind."""
    dtype: torch.dtype = torch.float32


class TensorTable:
    """All tensors of a method, in the order in which they are declared, and what follows from their lines."""

    def __init__(self, specs: tuple[TensorSpec, ...]) -> None:
        self.specs = specs
        self.sent = tuple(spec.name for spec in specs if spec.sent)
        """Names of what a client is sent."""
        self.trained = tuple(spec.name for spec in specs if spec.trained)
        """Names of what a client trains."""
        self.returned = tuple(spec.name for spec in specs if spec.returned)
        """Names of what a client sends back."""
        self.replied = tuple(spec.name for spec in specs if spec.replied)
        """Names of what a client sends before round 0."""
        self.kept = tuple(spec.name for spec in specs if spec.kept)
        """Names of what stays at a client."""
        self.averaged = tuple(spec.name for spec in specs if spec.trained and spec.returned)
        """Names of what clients train and send back for a mean."""
        self.uploads = tuple(spec for spec in specs if spec.returned or spec.replied)
        """What clients send, before round 0 or after a visit."""
        self.kinds: dict[str, Kind] = {s.name: s.kind for s in self.uploads if s.kind is not None}
        """What the uploads are, by name; undeclared ones are left out."""
        self.each = tuple(spec.name for spec in self.uploads if spec.each or spec.kind == "own")
        """Names of the uploads of which the server needs every client's own and not only their sum."""
        self.weighted = {spec.name for spec in specs if spec.weighted}
        """Names of those to which the clients' weights apply in sums."""
        self.class_axes = {spec.name: spec.rows for spec in specs if spec.rows is not None}
        """The class axis by name, for tensors of which a client needs its own classes' rows."""
        self._by_name = {spec.name: spec for spec in specs}

    def __iter__(self) -> Iterator[TensorSpec]:
        """Yield the specs."""
        return iter(self.specs)

    def __contains__(self, name: str) -> bool:
        """Tell whether a tensor of this name is declared."""
        return name in self._by_name

    def __getitem__(self, name: str) -> TensorSpec:
        """Return the spec of this name."""
        return self._by_name[name]

    def first(self, seed: int) -> dict[str, Tensor]:
        """Return the server's tensors before round 0, as far as they follow from the seed."""
        return {spec.name: spec.first(seed) for spec in self.specs if spec.stored and spec.first}

    def first_kept(self, seed: int) -> dict[str, Tensor]:
        """Return what a client keeps before its first visit."""
        return {spec.name: spec.first(seed) for spec in self.specs if spec.kept and spec.first}


def take_rows(tensors: Tensors, axes: Mapping[str, int], classes: Tensor) -> dict[str, Tensor]:
    """Return ``tensors`` with only these classes' rows of those that have a class axis."""
    return {
        name: tensor.index_select(axes[name], classes) if name in axes else tensor
        for name, tensor in tensors.items()
    }


def put_rows(rows: Tensors, axes: Mapping[str, int], classes: Tensor, whole: Tensors) -> dict[str, Tensor]:
    """Undo ``take_rows``: the rows go back to their classes in copies of the ``whole`` tensors."""
    return {
        name: whole[name].index_copy(axes[name], classes, tensor) if name in axes else tensor
        for name, tensor in rows.items()
    }


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
    tensors: Tensors


@dataclass(frozen=True)
class Update:
    """What one client sends back: its tensors, how many samples it has, its mean training loss.

    ``kept`` is what the client remembers. It is no part of the message: the codec leaves it out.
    """

    client: int
    samples: int
    tensors: Tensors
    loss: float | None = None
    kept: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class ClientMemory:
    """What stays at the client between its visits and is never sent."""

    tensors: Tensors = field(default_factory=dict)


def moved(tensors: Tensors, to: device | str) -> dict[str, Tensor]:
    """Return ``tensors`` on a device; those that are there already are not copied."""
    return {name: tensor.to(to) for name, tensor in tensors.items()}


def count_floats(tensors: Tensors) -> int:
    """Count the floating-point numbers in ``tensors`` (masks and counters are not floats).

    Words of 64 bits are numbers too: those of a secure sum.
    """
    numbers = (t for t in tensors.values() if t.is_floating_point() or t.dtype == torch.uint64)
    return sum(tensor.numel() for tensor in numbers)


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
