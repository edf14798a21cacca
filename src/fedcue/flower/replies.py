"""What a client's reply must look like, found out by a dry visit; anything else is left out by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedcue.errors import ClientError
from fedcue.federate.rehearsal import rehearse
from fedcue.federate.roster import Roster
from fedcue.types import Tensors, Update, count_bytes

HEADER = 65536
"""Bytes that names and shapes may take beside the numbers."""


class Expected:
    """Names, shapes and types of the tensors in one kind of reply."""

    def __init__(self, example: Update | None) -> None:
        self.tensors: Mapping[str, Tensor] = {} if example is None else example.tensors
        self.most_bytes = count_bytes(self.tensors) + HEADER

    def check(self, tensors: Tensors) -> None:
        """Raise a ``ClientError`` that names the first thing that is wrong."""
        for name in self.tensors.keys() - tensors.keys():
            raise ClientError(f"its update has no {name}")
        for name, tensor in tensors.items():
            if name not in self.tensors:
                raise ClientError(f"its update has an unknown {name[:40]!r}")
            wanted = self.tensors[name]
            if tensor.dtype != wanted.dtype:
                raise ClientError(f"its {name} is of type {tensor.dtype} instead of {wanted.dtype}")
            if tensor.shape != wanted.shape:
                raise ClientError(
                    f"its {name} has shape {list(tensor.shape)} instead of {list(wanted.shape)}"
                )
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ClientError(f"its update of {name} is not finite")


def expected_replies(roster: Roster) -> tuple[Expected, Expected]:
    """Return what is expected at the warm start and in a round."""
    rehearsal = rehearse(roster)
    return Expected(rehearsal.reply), Expected(rehearsal.update)
