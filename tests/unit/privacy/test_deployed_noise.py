"""The noise of a deployment: fresh keys, and no generator on the way."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.tables import roster_of, table_of
from torch.utils._python_dispatch import TorchDispatchMode

from fedcue.aggregate.mean import Summing
from fedcue.config.layers import load
from fedcue.privacy.guard import Protection
from fedcue.privacy.stream import NoiseStream
from fedcue.rng import rng, torch_rng
from fedcue.types import Update

pytest.importorskip("dp_accounting")


GENERATORS = (torch.Generator, random.Random)
WHERE = {"central": "mean", "local": "mean", "distributed": "secure"}


class NoNumpyRandom:
    """Stands for ``numpy.random`` and gives nothing of it."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"noise by numpy.random.{name}")


class NoSeededOperations(TorchDispatchMode):
    """Refuses every operation of torch that draws from a generator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert torch.Tag.nondeterministic_seeded not in func.tags, f"noise by {func}"
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module", autouse=True)
def torch_has_imported_what_it_needs() -> None:
    with NoSeededOperations():
        torch.zeros(())


@contextmanager
def no_generators() -> Iterator[None]:
    """Fail at every number drawn from a generator of torch, numpy or Python."""

    def watch(frame: object, event: str, function: object) -> None:
        owner = getattr(function, "__self__", None)
        assert event != "c_call" or not isinstance(owner, GENERATORS), f"noise by {function}"

    before = sys.getprofile()
    with pytest.MonkeyPatch.context() as patch, NoSeededOperations():
        patch.setattr(np, "random", NoNumpyRandom())
        sys.setprofile(watch)
        try:
            yield
        finally:
            sys.setprofile(before)


def released(where: str) -> torch.Tensor:
    """Return what the server adds up of the update of one client."""
    settings = ["privacy=dp", "privacy.noise=1.0", f"privacy.where={where}", f"aggregate={WHERE[where]}"]
    config = load("default", settings)
    summing = Summing(table_of())
    protection = Protection(config.aggregate, config.privacy, summing, NoiseStream.secret, (4, 4))
    reference, update = {"head": torch.zeros(4, 3)}, Update(0, 5, {"head": torch.ones(4, 3)})
    with no_generators():
        left = protection.guard(0, 0).leave(update, reference)
        adding = protection.adding(reference, 0)
        adding.add(left)
        return adding.sums().tensors["head"]


@pytest.mark.parametrize("where", WHERE)
def test_every_release_takes_32_bytes_of_the_system_and_nothing_of_a_generator(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    system = os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: (drawn.append(count), system(count))[1])
    releases = [released(where), released(where)]
    assert drawn == [32, 32]
    assert not torch.equal(*releases)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    "draw",
    [
        lambda count: torch.randn(count).numpy(),
        lambda count: torch.empty(count).normal_().numpy(),
        lambda count: torch.rand_like(torch.empty(count)).numpy(),
        lambda count: torch.full((count,), 0.5).bernoulli().numpy(),
        lambda count: torch.randint(9, (count,), generator=torch_rng(0, "noise")).numpy(),
        lambda count: np.random.default_rng(0).normal(size=count),
        lambda count: rng(0, "noise").integers(9, size=count),
        lambda count: np.random.normal(size=count),
        lambda count: np.array([random.gauss(0, 1) for _ in range(count)]),
    ],
)
def test_a_generator_on_the_way_would_be_noticed(
    where: str, draw: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    released(where)
    words = NoiseStream.uniform_words

    def mixed(stream: NoiseStream, count: int) -> Any:
        draw(count)
        return words(stream, count)

    monkeypatch.setattr(NoiseStream, "uniform_words", mixed)
    with pytest.raises(AssertionError, match="noise by"):
        released(where)


@pytest.mark.parametrize(
    ("stream", "words"), [(None, "simulated noise"), (NoiseStream.secret, "operating system")]
)
def test_the_summary_says_where_the_noise_comes_from(stream: object, words: str) -> None:
    config = load("default", ["privacy=dp", "method=fedvpt"])
    from fedcue.clients.roster import Roster

    shown = roster_of(config)
    kept = {
        name: getattr(shown, name) for name in ("names", "domains", "heldout", "train_sizes", "test_sizes")
    }
    make = partial(Roster, config, "digits", shown.classes, shown.architecture, **kept)
    assert words in make(stream=stream).budget.fresh().summary()["privacy"]["noise"]
