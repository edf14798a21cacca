"""Whatever the server makes of updates, it needs no more than sums, weights and counts for it."""

from __future__ import annotations

import pytest
import torch
from tiny_federation import TinyFederation

from fedcue.aggregate.mean import Sums, sum_updates
from fedcue.registry import METHODS

AVERAGED = [name for name in METHODS.builtin if "own" not in METHODS.get(name)().kinds().values()]


class Recorded:
    """Adds up as a secure sum would, each client's own terms in another order, and keeps the sums."""

    def __call__(self, updates, weighting="uniform", plain=()) -> Sums:
        self.sums = Sums()
        for update in reversed(list(updates)):
            part = sum_updates([update], weighting, plain)
            self.sums.weight += part.weight
            self.sums.updates += part.updates
            for name, tensor in part.tensors.items():
                self.sums.tensors[name] = self.sums.tensors.get(name, 0) + tensor
        return self.sums

    def again(self, updates, weighting="uniform", plain=()) -> Sums:
        """Return the same sums to a server that was given no update at all."""
        assert not list(updates)
        return self.sums


def test_only_pfedpg_keeps_something_of_each_client():
    assert set(METHODS.builtin) - set(AVERAGED) == {"pfedpg"}


@pytest.mark.parametrize("weighting", ["uniform", "size"])
@pytest.mark.parametrize("name", AVERAGED)
def test_an_aggregate_follows_from_the_sums_alone(name, weighting):
    tiny = TinyFederation(METHODS.get(name)(weighting=weighting), images=8)
    replies = [tiny.method.warm_up(tiny.visit(client)) for client in range(3)]
    replies = [reply for reply in replies if reply is not None]
    recorded = Recorded()
    start = tiny.method.start(tiny.setting, 0, replies)
    tiny.method.start(tiny.setting, 0, replies, recorded)
    secure = tiny.method.start(tiny.setting, 0, [], recorded.again if replies else sum_updates)
    for key in start.tensors:
        torch.testing.assert_close(secure.tensors[key], start.tensors[key])
    updates = [tiny.update(start, client)[0] for client in range(3)]
    plain = tiny.method.aggregate(start, updates)
    tiny.method.aggregate(start, updates, recorded)
    secure = tiny.method.aggregate(start, [], recorded.again)
    for key in plain.tensors:
        torch.testing.assert_close(secure.tensors[key], plain.tensors[key])
