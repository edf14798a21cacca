"""No number is read back inside the training loop: on a GPU every read waits for all that was begun."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from support.tiny_federation import TinyFederation
from torch.utils._python_dispatch import TorchDispatchMode

from fedcue.clients.federation import load_federation
from fedcue.config.layers import load
from fedcue.registry import METHODS
from fedcue.train.settings import Training
from fedcue.types import ClientMemory, Download

READS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal")
"""Operators whose results the host must wait for."""


class Reads(TorchDispatchMode):
    """Counts the operators that read numbers, masks used as indices among them."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        indices = [one for one in args[1] if one is not None] if name in ("index", "index_put_") else []
        if name in READS or any(index.dtype == torch.bool for index in indices):
            self.count[name] += 1
        return function(*args, **(kwargs or {}))


def reads(method: str, epochs: int) -> Counter[str]:
    """Return what is read in a visit of so many epochs of two steps."""
    training = Training(lr=0.1, epochs=epochs, batch_size=8)
    tiny = TinyFederation(METHODS.get(method)(), training=training)
    state = tiny.start()
    with Reads() as found:
        tiny.update(state, 0)
    return found.count


@pytest.mark.parametrize("method", METHODS.builtin)
def test_what_is_read_in_a_visit_does_not_grow_with_its_steps(method: str) -> None:
    assert reads(method, epochs=3) == reads(method, epochs=1)


def test_the_frozen_cache_and_the_stop_flag_read_nothing_either() -> None:
    small = ["partition.clients=5", "data.train_per_class=10", "data.test_per_class=5", "workers=1"]
    federation = load_federation(load("default", [*small, "method=fedvpt", "training.batch_size=8"]))
    roster, host = federation.roster, federation.host
    state = roster.method.start(roster.sizes, 0, roster.protection.adding({}, "warm up").sums())
    download = Download(0, 0, roster.method.download(state, 0, roster.sizes, 0))
    counts = []
    for epochs in (1, 1, 3):  # the first visit fills the cache
        training = federation.config.training.model_copy(update={"epochs": epochs})
        host.config = federation.config.model_copy(update={"training": training})
        with Reads() as found:
            host.train(download, ClientMemory())
        counts.append(found.count)
    assert federation.frozen_level == "projected"
    assert counts[1] == counts[2]
