"""What is put on the wire: whole tensors, or only the rows of the classes a client holds.

A client's mixing weight is exactly zero for a class it does not hold, so it needs and changes only
its own classes' rows of class prompts and prototypes. Sparse messages carry just those; the other
end fills the rest from what it has, and the result of training is the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedcue.errors import ConfigError
from fedcue.settings import RunConfig
from fedcue.types import Download, Tensors, Update

CLASSES = "classes"
"""Name under which a sparse message says which classes its rows belong to."""


def check_transport(config: RunConfig) -> None:
    """Refuse sparse messages where a client needs, or must seem to need, the rows of all classes."""
    every_row_moves = "head" in config.method.class_rows and config.method.logit_prior != "train+test"
    reasons = {
        "privacy=dp": config.privacy.name == "dp",
        "method.prior=uniform": getattr(config.method, "prior", "client") == "uniform",
        "method.prior_smoothing above 0": config.method.prior_smoothing > 0,
        f"method.logit_prior={config.method.logit_prior} (not train+test)": every_row_moves,
    }
    for reason, holds in reasons.items():
        if holds and config.transport.name == "sparse":
            raise ConfigError(
                f"transport=sparse sends only the rows of a client's own classes, but with {reason} every "
                "class counts. Use transport=dense."
            )
    if config.transport.dtype == "float16" and getattr(config.privacy, "where", "") == "central":
        raise ConfigError(
            "transport.dtype=float16 rounds what clients send before the server adds its noise, so that one "
            "record moves it farther than privacy.where=central allows. Give transport.dtype=float32."
        )


@dataclass
class Transport:
    """The server's end of the wire: what it knows of each client, and how messages are made."""

    config: RunConfig
    classes: dict[int, Tensor] = field(default_factory=dict)
    """Which classes a client holds, as its warm-up reply showed."""
    received: dict[int, int] = field(default_factory=dict)
    """The round in which a client was last sent the tensors that seldom change."""
    changed: int = 0
    """The round after which those tensors last changed."""

    def __post_init__(self) -> None:
        self.sparse = self.config.transport.name == "sparse"
        self.rows: Mapping[str, int] = self.config.method.class_rows if self.sparse else {}
        self.periodic: tuple[str, ...] = self.config.method.periodic if self.sparse else ()
        self.half = self.config.transport.dtype == "float16"

    def learn(self, reply: Update) -> None:
        """Note the classes that a warm-up reply shows."""
        if self.sparse and "holds" in reply.tensors:
            self.classes[reply.client] = reply.tensors["holds"].nonzero()[:, 0]

    def download(self, download: Download) -> tuple[Download, Download]:
        """Return the message sent to a client, and the download it makes of it."""
        fresh = self.received.get(download.client, -1) < self.changed
        message = {
            name: tensor for name, tensor in download.tensors.items() if fresh or name not in self.periodic
        }
        self.received[download.client] = download.round
        message = self._encode(message, download.client)
        kept = {name: download.tensors[name] for name in self.periodic if not fresh}
        tensors = {**kept, **self._decode(message, {}, self._class_count(download.tensors))}
        return replace(download, tensors=message), replace(download, tensors=tensors)

    def upload(self, update: Update, state: Tensors) -> tuple[Update, Update]:
        """Return the message a client sends, and the update the server makes of it.

        Absent rows are as in the server's state, or zero where it has none.
        """
        message = self._encode(update.tensors, update.client)
        tensors = self._decode(message, state, self._class_count(update.tensors))
        return replace(update, tensors=message), replace(update, tensors=tensors)

    def note_changes(self, before: Tensors, after: Tensors, finished_rounds: int) -> None:
        """Note whether the tensors that seldom change did so in the round that ended."""
        if any(not torch.equal(before[name], after[name]) for name in self.periodic if name in before):
            self.changed = finished_rounds

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

    def _class_count(self, tensors: Tensors) -> int:
        return next((tensors[name].shape[axis] for name, axis in self.rows.items() if name in tensors), 0)

    def _encode(self, tensors: Tensors, client: int) -> dict[str, Tensor]:
        message = {name: _halved(t) if self.half else t for name, t in tensors.items()}
        classes = self.classes.get(client)
        sparse = [name for name in message if name in self.rows]
        if classes is None or not sparse:
            return message
        for name in sparse:
            message[name] = message[name].index_select(self.rows[name], classes)
        return {**message, CLASSES: classes.int()}

    def _decode(self, message: Tensors, reference: Tensors, classes: int) -> dict[str, Tensor]:
        whole = {n: t.float() if self.half and t.is_floating_point() else t for n, t in message.items()}
        held = whole.pop(CLASSES, None)
        for name in [name for name in whole if name in self.rows and held is not None]:
            assert held is not None
            axis, rows = self.rows[name], whole[name]
            shape = [*rows.shape[:axis], classes, *rows.shape[axis + 1 :]]
            base = reference[name] if name in reference else rows.new_zeros(shape)
            whole[name] = base.index_copy(axis, held.long(), rows)
        return whole


def _halved(tensor: Tensor) -> Tensor:
    """Return numbers in float16, unless one is too large for it or they are no floats."""
    half = tensor.half() if tensor.is_floating_point() else tensor
    return half if torch.isfinite(half).all() else tensor
