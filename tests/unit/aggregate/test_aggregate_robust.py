"""Robust rules: equal to the mean where all is well, bounded by the honest clients where it is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcue.aggregate.changes import bounded, krum, rowwise
from fedcue.aggregate.mean import sum_updates
from fedcue.aggregate.robust import Krum, Mean, Median, TrimmedMean
from fedcue.errors import ConfigError
from fedcue.types import Update

START = {"head": torch.arange(12.0).view(4, 3)}
RULES = [TrimmedMean(attackers=2), Median(), Krum(attackers=2)]


def updates_of(changes: Tensor) -> list[Update]:
    return [Update(i, 10, {"head": START["head"] + change}) for i, change in enumerate(changes)]


def change_of(rule, changes: Tensor) -> Tensor:
    """Return how far the rule moves the head."""
    return rule.combiner(START)(updates_of(changes)).mean("head") - START["head"]


def honest(seed: int, clients: int = 10) -> Tensor:
    return torch.randn(clients, 4, 3, generator=torch.Generator().manual_seed(seed)) * 0.1 + 1


def test_plain_mean_is_the_sum_itself():
    assert Mean().combiner(START) is sum_updates
    assert Mean().plain
    assert not Mean(norm_bound=1.0).plain


def test_nothing_trimmed_is_the_mean():
    changes = honest(0)
    torch.testing.assert_close(rowwise(changes, 0), changes.sum(0).double())


@pytest.mark.parametrize("rule", [*RULES, Mean(norm_bound="median")], ids=lambda rule: rule.name)
def test_equal_updates_stay_what_they_are(rule):
    changes = honest(1)[:1].expand(10, -1, -1)
    torch.testing.assert_close(change_of(rule, changes), changes[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(st.integers(0, 2**31), st.sampled_from([-1.0, 100.0, -1e6, 1e30]))
@settings(max_examples=25, deadline=None)
def test_two_of_ten_cannot_leave_the_honest_range(rule, seed, factor):
    changes = honest(seed)
    changes[:2] *= factor
    moved, good = change_of(rule, changes), changes[2:]
    assert (moved >= good.amin(0) - 1e-4).all()
    assert (moved <= good.amax(0) + 1e-4).all()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none_do_no_harm(rule, value):
    changes = honest(2)
    changes[:2] = value
    moved = change_of(rule, changes)
    assert torch.isfinite(moved).all()
    assert (moved - 1).abs().max() < 1


def test_the_mean_is_moved_by_a_single_client():
    changes = honest(3)
    changes[0] *= 100
    assert change_of(Mean(), changes).min() > 5
    assert change_of(Mean(norm_bound="median"), changes).max() < 2


def test_a_row_moves_with_its_holders_only():
    """A median over all ten would freeze a class that three clients hold."""
    changes = torch.zeros(10, 4, 3)
    changes[:3, 1] = torch.tensor([1.0, 2.0, 9.0])[:, None]
    moved = change_of(Median(mix=False), changes)
    assert torch.equal(moved[[0, 2, 3]], torch.zeros(3, 3))
    torch.testing.assert_close(moved[1], torch.full((3,), 2 * 3 / 10))


def test_two_holders_share_a_mean_of_bounded_changes():
    changes = torch.zeros(10, 4, 3)
    changes[:, 0] = 1.0
    changes[0, 1], changes[1, 1] = 1.0, 1000.0
    torch.testing.assert_close(change_of(Median(mix=False), changes)[1], torch.full((3,), 0.2))


def test_mixing_keeps_what_a_minority_learned():
    """Three clients with a class raise its row, seven without it lower it a little."""
    changes = torch.full((10, 4, 3), -0.1) + 0.01 * honest(6)
    changes[:3, 1] += 1.0
    assert change_of(Median(mix=False), changes)[1].max() < 0
    torch.testing.assert_close(change_of(Median(), changes), changes.mean(0), atol=0.2, rtol=0)


def test_vectors_are_rows_of_single_numbers():
    biases = torch.tensor([[1.0, 0.0], [2.0, 0.0], [9.0, 5.0]])
    torch.testing.assert_close(rowwise(biases, 9), torch.tensor([6.0, 3.5], dtype=torch.float64))


def test_centroids_have_no_reference_and_count_their_holders():
    centroids = torch.zeros(5, 1, 2, 3)
    centroids[:3, 0, 0] = torch.tensor([1.0, 2.0, -50.0])[:, None]
    replies = [
        Update(i, 10, {"centroids": own, "holds": (own[0] != 0).any(-1)}) for i, own in enumerate(centroids)
    ]
    for rule in (Median(), Krum(attackers=1)):
        sums = rule.combiner({})(replies, plain=("centroids", "holds"))
        torch.testing.assert_close(sums.total("holds"), torch.tensor([3.0, 0.0]))
        torch.testing.assert_close(sums.total("centroids")[0, 0] / 3, torch.ones(3))


def test_krum_keeps_those_with_near_neighbours():
    changes = torch.cat([torch.randn(8, 50) * 0.1, torch.randn(2, 50) * 5])
    assert krum(changes, attackers=2, keep=8) == list(range(8))
    assert krum(changes, attackers=2, keep=1)[0] < 8


def test_krum_keep_one_is_one_of_the_updates():
    changes = honest(4)
    moved = change_of(Krum(attackers=2, keep=1), changes)
    assert min((moved - change).abs().max() for change in changes) < 1e-5


def test_bounded_changes_keep_their_direction():
    changes = honest(5)
    changes[0] *= 100
    after = bounded(updates_of(changes), START, 1.0)
    for update, change in zip(after, changes, strict=True):
        own = (update.tensors["head"] - START["head"].double()).flatten()
        assert own.norm() <= 1 + 1e-9
        assert torch.cosine_similarity(own, change.flatten().double(), dim=0) > 0.999999


@pytest.mark.parametrize(
    ("rule", "clients"),
    [
        (TrimmedMean(attackers=2), 4),
        (Median(attackers=1), 2),
        (Krum(attackers=2), 6),
        (Krum(attackers=1, keep=5), 5),
    ],
)
def test_rounds_that_are_too_small_are_refused(rule, clients):
    with pytest.raises(ConfigError, match="Give"):
        rule.check(clients)
    rule.check(clients + 1)
