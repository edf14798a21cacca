"""Clients that train in one batch end with what each would have learnt alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.double import DoubleHost
from support.tiny_federation import TINY, TinyFederation, random_vit
from torch.utils._python_dispatch import TorchDispatchMode

from fedcue.clients.together import train_together
from fedcue.errors import ClientError
from fedcue.methods.base import Method
from fedcue.registry import METHODS
from fedcue.train.settings import Training
from fedcue.types import ClientMemory, Download, ServerState, Update

SIZES = (13, 5, 16, 16)
CLASSES_OF = ((0, 1), (1,), (0, 1, 2), (2, 3))
LABELS = [[own[i % len(own)] for i in range(n)] for own, n in zip(CLASSES_OF, SIZES, strict=True)]
OPTIONS: dict[str, dict[str, Any]] = {
    "pep": {"layers": (1, 2)},
    "ppt": {"alternate": False},
    "fedrod": {"prompts": 1},
}
TRAINED = [name for name in METHODS.builtin if METHODS.get(name).fixed.get("rounds") != 0]
PLAIN = [name for name in TRAINED if METHODS.get(name)().trains_together()]
SHAPE = replace(TINY, depth=3)
TRAINING = Training(lr=0.05, epochs=2, batch_size=6, clip_norm=1.0, momentum=0.9, weight_decay=1e-2)


def method(name: str) -> Method:
    return METHODS.get(name)(**OPTIONS.get(name, {}))


def federation(method: Method, training: Training = TRAINING, double: bool = True) -> TinyFederation:
    model = random_vit(SHAPE)
    if double:
        model.backbone.double()
    kind = {"host_kind": DoubleHost} if double else {}
    return TinyFederation(method, model, training, labels=LABELS, **kind)


@cache
def state(name: str) -> ServerState:
    return federation(method(name), double=False).start()


def jobs(tiny: TinyFederation, clients: range = range(3)) -> list[tuple[Download, ClientMemory]]:
    sent = state(tiny.method.name)
    return [(Download(c, 0, tiny.sent(sent, c)), ClientMemory()) for c in clients]


def largest_difference(one: Update, other: Update) -> float:
    assert set(one.tensors) == set(other.tensors)
    pairs = [(tensor.double(), other.tensors[name].double()) for name, tensor in one.tensors.items()]
    differences = [(mine - theirs).abs().max() for mine, theirs in pairs]
    return max(map(float, [*differences, abs((one.loss or 0) - (other.loss or 0))]))


def differences(tiny: TinyFederation) -> list[float]:
    """Train one by one and together; return by how much anything sent or kept differs."""
    alone = [tiny.host.train(*job) for job in jobs(tiny)]
    found = []
    for (update, kept), outcome in zip(alone, train_together(tiny.host, jobs(tiny)), strict=True):
        assert not isinstance(outcome, Exception)
        found.append(largest_difference(update, outcome[0]))
        for name, tensor in kept.tensors.items():
            found.append(float((tensor - outcome[1].tensors[name]).abs().max()))
    return found


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_in_float64(name: str) -> None:
    """With clients of 13, 5 and 16 images in batches of 6, of two, one and three classes."""
    tiny = federation(method(name))
    assert max(differences(tiny)) < 1e-9


@pytest.mark.parametrize(
    "change",
    [
        {"optimiser": "adam", "lr": 0.01},
        {"clip_norm": None, "momentum": 0.0},
        {"batch_size": 50},
        {"batch_size": 1, "epochs": 1},
        {"clip_norm": 1e-3},
    ],
    ids=str,
)
def test_the_same_with_every_optimiser_and_size_of_batch(change: dict[str, Any]) -> None:
    training = TRAINING.model_copy(update=change)
    assert max(differences(federation(method("pep"), training))) < 1e-9


def test_within_rounding_in_float32() -> None:
    found = differences(federation(method("pep"), double=False))
    assert 0 < max(found) < 2e-6


class Operators(TorchDispatchMode):
    """Counts the operators that are launched."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[str(function)] += 1
        return function(*args, **(kwargs or {}))


def operators_of_a_step(name: str, clients: int) -> Counter[str]:
    """Return what a visit of three steps launches more than one of two does."""
    counts = []
    for images in (16, 24):
        training = Training(lr=0.1, epochs=1, batch_size=8, clip_norm=1.0)
        tiny = TinyFederation(method(name), random_vit(SHAPE), training, images=images)
        given = jobs(tiny, range(clients))
        with Operators() as found:
            assert len(list(train_together(tiny.host, given))) == clients
        counts.append(found.count)
    return counts[1] - counts[0]


@pytest.mark.parametrize("name", PLAIN)
def test_a_step_launches_as_many_operators_for_four_clients_as_for_two(name: str) -> None:
    two = operators_of_a_step(name, clients=2)
    assert two.total() > 20
    assert operators_of_a_step(name, clients=4) == two


def test_a_client_whose_loss_is_no_number_fails_alone() -> None:
    tiny = federation(method("pep"))
    given = jobs(tiny)
    head = given[1][0].tensors["head"] * torch.nan
    spoilt = replace(given[1][0], tensors={**given[1][0].tensors, "head": head})
    outcomes = list(train_together(tiny.host, [given[0], (spoilt, ClientMemory()), given[2]]))
    assert isinstance(outcomes[1], ClientError)
    assert str(outcomes[1]).startswith("loss nan at step 1;")
    for number in (0, 2):
        alone = tiny.host.train(*given[number])[0]
        assert largest_difference(alone, outcomes[number][0]) < 1e-9
