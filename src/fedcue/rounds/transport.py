"""What is put on the wire: whole tensors, or only the rows of the classes a client holds.

A client's mixing weight is exactly zero for a class it does not hold: it needs and changes only its
own classes' rows of class prompts and prototypes. Sparse messages carry just those; the other end
fills the rest from what it has, and the result of training is the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedcue.config.settings import RunConfig
from fedcue.errors import ConfigError
from fedcue.types import (
    Download,
    ServerState,
    Tensors,
    TensorTable,
    Update,
    count_bytes,
    count_floats,
    put_rows,
    take_rows,
)

CLASSES = "classes"
"""Name under which a sparse message says which classes its rows belong to."""


def check_transport(config: RunConfig) -> None:
    """Refuse sparse messages where a client needs, or must seem to need, the rows of all classes."""
    reason = "privacy=dp" if config.privacy.differential else config.method.needs_all_rows()
    if reason and config.transport.name == "sparse":
        raise ConfigError(
            f"transport=sparse sends only the rows of a client's own classes, but with {reason} every "
            "class counts. Use transport=dense."
        )
    if config.aggregate.sums_only and (config.transport.name, config.transport.dtype) != ("dense", "float32"):
        raise ConfigError(
            f"aggregate={config.aggregate.name} adds up whole words of all numbers, so that nothing shows "
            "which classes a client holds. Give transport=dense and transport.dtype=float32."
        )
    if config.transport.dtype == "float16" and config.privacy.central:
        raise ConfigError(
            "transport.dtype=float16 rounds what clients send before the server adds its noise: one "
            "record moves it farther than privacy.where=central allows. Give transport.dtype=float32."
        )


@dataclass
class Traffic:
    """What travelled, counted from the tensors themselves."""

    upload_floats: int = 0
    download_floats: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0

    def add(self, tensors: Tensors, *, up: bool) -> None:
        """Count an upload or a download."""
        floats, size = count_floats(tensors), count_bytes(tensors)
        if up:
            self.upload_floats, self.upload_bytes = self.upload_floats + floats, self.upload_bytes + size
        else:
            self.download_floats += floats
            self.download_bytes += size


@dataclass
class Wire:
    """The server's end of the wire: what it knows of each client, and how messages are made."""

    config: RunConfig
    table: TensorTable
    traffic: Traffic = field(default_factory=Traffic)
    classes: dict[int, Tensor] = field(default_factory=dict)
    """Which classes a client holds, as its first reply showed."""
    received: dict[int, int] = field(default_factory=dict)
    """The round in which a client was last sent the tensors that seldom change."""
    changed: int = 0
    """The round after which those tensors last changed."""

    def __post_init__(self) -> None:
        self.sparse = self.config.transport.name == "sparse"
        self.half = self.config.transport.dtype == "float16"
        self.axes: Mapping[str, int] = self.table.class_axes if self.sparse else {}
        self.seldom = {spec.name for spec in self.table if spec.seldom} if self.sparse else set()

    def first_reply(self, reply: Update) -> Update:
        """Return what the server makes of a reply before round 0, and note the classes it shows."""
        for name, kind in self.table.kinds.items():
            if self.sparse and kind == "class_counts" and name in reply.tensors:
                self.classes[reply.client] = reply.tensors[name].nonzero().flatten()
        return self.upload(reply, {})

    def download(self, download: Download) -> Download:
        """Count the message to a client and return the download that it makes of it."""
        client = download.client
        fresh = client not in self.received or self.received[client] < self.changed
        kept = {name: t for name, t in download.tensors.items() if name in self.seldom and not fresh}
        sent = {name: tensor for name, tensor in download.tensors.items() if name not in kept}
        self.received[client] = download.round
        message = self._encode(sent, client)
        if not self.config.pooled:  # there is one place, and nothing travels
            self.traffic.add(message, up=False)
        return replace(download, tensors={**kept, **self._decode(message, sent, {})})

    def upload(self, update: Update, state: Tensors) -> Update:
        """Count a client's message and return the update that the server makes of it.

        Absent rows are as in the server's state, or zero where it has none.
        """
        message = self._encode(update.tensors, update.client)
        if not self.config.pooled:
            self.traffic.add(message, up=True)
        return replace(update, tensors=self._decode(message, update.tensors, state))

    def note_changes(self, before: ServerState, after: ServerState) -> None:
        """Note whether the tensors that seldom change did so in the round that ended."""
        if any(not torch.equal(before.tensors[name], after.tensors[name]) for name in self.seldom):
            self.changed = after.round

    def memory(self) -> dict[str, Any]:
        """Return what the server must remember of earlier messages, as plain values."""
        classes = {str(client): own.tolist() for client, own in self.classes.items()}
        received = {str(client): number for client, number in self.received.items()}
        return {"classes": classes, "received": received, "changed": self.changed}

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Go on from what ``memory`` returned."""
        self.classes = {int(client): torch.tensor(own) for client, own in memory["classes"].items()}
        self.received = {int(client): number for client, number in memory["received"].items()}
        self.changed = memory["changed"]

    def _encode(self, tensors: Tensors, client: int) -> dict[str, Tensor]:
        message = {name: _halved(t) if self.half else t for name, t in tensors.items()}
        classes = self.classes.get(client)
        if classes is None or not self.axes.keys() & message.keys():
            return message
        return {**take_rows(message, self.axes, classes), CLASSES: classes.int()}

    def _decode(self, message: Tensors, whole: Tensors, reference: Tensors) -> dict[str, Tensor]:
        """Return the message's tensors in float32 and full size; other rows as in ``reference``, or zero."""
        rows = {n: t.float() if self.half and t.is_floating_point() else t for n, t in message.items()}
        classes = rows.pop(CLASSES, None)
        if classes is None:
            return rows
        base = {
            name: reference[name] if name in reference else rows[name].new_zeros(whole[name].shape)
            for name in rows
            if name in self.axes
        }
        return put_rows(rows, self.axes, classes.long(), base)


def _halved(tensor: Tensor) -> Tensor:
    """Return floats in float16, unless one is too large for it; other tensors as they are."""
    half = tensor.half() if tensor.is_floating_point() else tensor
    return half if torch.isfinite(half).all() else tensor
