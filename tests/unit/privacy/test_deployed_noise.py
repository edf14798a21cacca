"""The noise of a deployment: fresh keys, and no generator of torch or numpy on the way."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest
import torch
from support.tables import roster_of, table_of

from fedcue.aggregate.mean import Summing
from fedcue.config.layers import load
from fedcue.privacy.guard import Protection
from fedcue.privacy.stream import NoiseStream
from fedcue.types import Update

pytest.importorskip("dp_accounting")


def forbidden(*arguments: object, **named: object) -> None:
    raise AssertionError("privacy=dp asked a generator of torch or numpy")


@pytest.mark.parametrize("where", ["central", "local"])
def test_every_release_takes_32_bytes_of_the_system_and_nothing_of_torch_or_numpy(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    privacy = load("default", ["privacy=dp", "privacy.noise=1.0", f"privacy.where={where}"]).privacy
    config = load("default", [])
    protection = Protection(config.aggregate, privacy, Summing(table_of()), NoiseStream.secret, (4, 4))
    drawn: list[int] = []
    system = os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: (drawn.append(count), system(count))[1])
    for module, names in ((torch, ("randn", "rand", "normal")), (np.random, ("default_rng", "Generator"))):
        for name in names:
            monkeypatch.setattr(module, name, forbidden)
    reference, update = {"head": torch.zeros(4, 3)}, Update(0, 5, {"head": torch.ones(4, 3)})
    releases = []
    for _ in range(2):
        left = protection.guard(0, 0).leave(update, reference)
        adding = protection.adding(reference, 0)
        adding.add(left)
        releases.append(adding.sums().tensors["head"])
    assert drawn == [32, 32]
    assert not torch.equal(*releases)


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
