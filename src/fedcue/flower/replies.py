"""What a client's reply must look like, found out by a dry visit; anything else is left out by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedcue.data.client import ClientData
from fedcue.data.dataset import Dataset
from fedcue.data.sources import NoImages
from fedcue.errors import ClientError
from fedcue.federate.counting import Meter, counting_vit
from fedcue.federate.outline import Counted, no_pixels
from fedcue.federate.roster import Roster
from fedcue.types import ClientMemory, Tensors, Update, count_bytes

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
    """Return what is expected at the warm start and in a round.

    A client without images that holds every class makes both once, on a backbone without weights.
    """
    classes = len(roster.classes)
    labels, none = np.arange(classes), np.empty(0, dtype=np.int64)
    priors = np.full(classes, 1 / classes)
    client = ClientData(0, "", "", False, labels, labels, none, labels, labels, none, priors)
    is_test = np.zeros(classes, dtype=np.bool_)
    dataset = Dataset(roster.dataset, roster.classes, labels, is_test, NoImages("nothing", classes))
    meter = Meter()
    config = roster.config.model_copy(update={"device": "cpu", "client_timeout": None})
    model = counting_vit(roster.architecture, meter)
    site = Counted(config, dataset, [client], no_pixels(), model, roster.setting, roster.protection)
    site.meter = meter
    reply = site.warm_up(0)
    state = roster.method.start(roster.setting, config.seed, [] if reply is None else [reply])
    update, _ = site.train(roster.method.download(state, 0, config.seed), ClientMemory())
    return Expected(reply), Expected(update)
