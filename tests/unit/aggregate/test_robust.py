"""Robust rules: equal to the mean where all is well, bounded by the honest clients where it is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import STATISTICS, combined, table_of
from torch import Tensor

from fedcue.aggregate.agreement import agreement, bounded, krum, rowwise, statistic
from fedcue.aggregate.mean import PlainAdding, Summing
from fedcue.aggregate.robust import Krum, Mean, Median, TrimmedMean
from fedcue.errors import ConfigError
from fedcue.types import Update

START = {"head": torch.arange(12.0).view(4, 3)}
RULES = [TrimmedMean(attackers=2), Median(), Krum(attackers=2)]


def updates_of(changes: Tensor) -> list[Update]:
    return [Update(i, 10, {"head": START["head"] + change}) for i, change in enumerate(changes)]


def change_of(rule, changes: Tensor) -> Tensor:
    """Return how far the rule moves the head."""
    return combined(rule, updates_of(changes), START).mean("head") - START["head"]


def honest(seed: int, clients: int = 10) -> Tensor:
    return torch.randn(clients, 4, 3, generator=torch.Generator().manual_seed(seed)) * 0.1 + 1


def test_plain_mean_is_the_sum_itself():
    assert isinstance(Mean().adding(START, Summing(table_of())), PlainAdding)
    assert Mean().plain
    assert not Mean(norm_bound=1.0).plain
    assert not any(rule.plain for rule in RULES)
    assert not any(rule.sums_only for rule in [Mean(), *RULES])


def test_nothing_trimmed_is_the_mean():
    changes = honest(0)
    torch.testing.assert_close(rowwise(changes, 0), changes.sum(0).double())


@pytest.mark.parametrize("rule", [*RULES, Mean(norm_bound="median")], ids=lambda rule: rule.name)
def test_equal_updates_stay_what_they_are(rule):
    changes = honest(1)[:1].expand(10, -1, -1)
    torch.testing.assert_close(change_of(rule, changes), changes[0], atol=1e-5, rtol=1e-5)


def shortened(changes: Tensor) -> Tensor:
    """Return the changes as a rule sees them: none longer than the median one."""
    after = bounded(updates_of(changes), START, "median")
    return torch.stack([update.tensors["head"] - START["head"].double() for update in after])


def attacked(seed: int, attack: str, factor: float) -> Tensor:
    """Return ten changes of which the first two are bad: in any direction, or near honest ones but for a row."""
    changes = honest(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    if attack == "random":
        changes[:2] = torch.randn(2, 4, 3, generator=generator)
    if attack == "hidden":
        changes[:2, int(torch.randint(4, (), generator=generator))] *= -1
    changes[:2] *= factor
    return changes


ATTACKED = st.builds(
    attacked,
    st.integers(0, 2**31),
    st.sampled_from(["scaled", "random", "hidden"]),
    st.sampled_from([-1.0, 1.0, 100.0, -1e6, 1e30]),
)


@pytest.mark.parametrize(
    "rule", [TrimmedMean(attackers=2, mix=False), Median(mix=False)], ids=lambda rule: rule.name
)
@given(ATTACKED)
@settings(max_examples=50, deadline=None)
def test_without_mixing_two_of_ten_cannot_leave_the_honest_range(rule, changes):
    moved, good = change_of(rule, changes), shortened(changes)[2:]
    assert (moved >= good.amin(0) - 1e-5).all()
    assert (moved <= good.amax(0) + 1e-5).all()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@given(ATTACKED)
@settings(max_examples=50, deadline=None)
def test_two_of_ten_have_the_weight_of_two_in_a_mean_of_eight(rule, changes):
    """Whatever is averaged holds six honest changes at least, and none is longer than the median one."""
    moved, seen = change_of(rule, changes), shortened(changes)
    good, longest = seen[2:], seen.flatten(1).norm(dim=1).max()
    assert longest <= changes[2:].flatten(1).norm(dim=1).max() + 1e-5  # of an honest client
    assert (moved >= (6 * good.amin(0) - 2 * longest) / 8 - 1e-5).all()
    assert (moved <= (6 * good.amax(0) + 2 * longest) / 8 + 1e-5).all()


FOUND = [
    [[0.5, 0.2, -0.4], [1.8, 1.7, 1.7], [0.0, -1.5, 0.0], [0.5, 0.0, 0.4]],
    [[0.9, 0.9, 0.8], [1.7, -0.6, 2.6], [0.2, 0.6, 0.7], [-1.0, -0.7, 3.4]],
]
"""Two bad changes that some 1,700 steps of a search found."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_bad_changes_made_to_look_honest_leave_the_honest_range(rule):
    """What the page does not promise; its bound holds."""
    changes = honest(3)
    changes[:2] = torch.tensor(FOUND)
    moved, good = change_of(rule, changes), shortened(changes)[2:]
    assert 0.15 < (good.amin(0) - moved).max() < 0.17
    assert (good.amax(0) - good.amin(0)).mean() == pytest.approx(0.26, abs=0.01)
    longest = good.flatten(1).norm(dim=1).max()
    assert (moved >= (6 * good.amin(0) - 2 * longest) / 8).all()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_honest_clients_that_do_not_move_are_part_of_the_median(rule):
    changes = torch.zeros(7, 4, 3)
    changes[:2], changes[2] = 1e4, 0.01  # two bad ones, and one of five honest ones moved
    assert change_of(rule, changes).abs().max() <= 0.01


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
    moved = change_of(Median(mix=False, norm_bound=1e9), changes)
    assert torch.equal(moved[[0, 2, 3]], torch.zeros(3, 3))
    torch.testing.assert_close(moved[1], torch.full((3,), 2 * 3 / 10))


def test_two_holders_share_a_mean_of_bounded_changes():
    changes = torch.zeros(10, 4, 3)
    changes[:, 0] = 1.0
    changes[0, 1], changes[1, 1] = 1.0, 1000.0
    torch.testing.assert_close(
        change_of(Median(mix=False, norm_bound=1e9), changes)[1], torch.full((3,), 0.2)
    )


def skewed(seed: int) -> Tensor:
    """Return changes of a head by clients with two of four classes each: far up, the others a bit down."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(4, 30, generator=generator)
    changes = torch.zeros(10, 4, 30)
    for client in range(10):
        own = torch.randperm(4, generator=generator)[:2]
        changes[client] -= 0.2 * features[own].mean(0)
        changes[client, own] += features[own] + 0.3 * torch.randn(2, 30, generator=generator)
    return changes


@pytest.mark.parametrize("seed", range(20))
def test_flipped_updates_are_recognised_among_clients_with_different_classes(seed):
    changes = skewed(seed)
    changes[[3, 6]] *= -1
    start = {"head": torch.zeros(4, 30)}
    updates = [Update(i, 10, {"head": change}) for i, change in enumerate(changes)]
    assert krum(agreement(updates, start), attackers=2, keep=8) == [0, 1, 2, 4, 5, 7, 8, 9]


def test_mixing_keeps_what_a_minority_learned():
    """Clients without a class outvote those that have it, unless all have mixed before."""
    changes, start = skewed(0), {"head": torch.zeros(4, 30)}
    updates = [Update(i, 10, {"head": change}) for i, change in enumerate(changes)]
    mixed, alone = (combined(Median(mix=mix), updates, start).mean("head") for mix in (True, False))
    mean = changes.mean(0)
    assert torch.cosine_similarity(mixed.flatten(), mean.flatten(), dim=0) > 0.95
    assert (mixed - mean).norm() < 0.7 * (alone - mean).norm()


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
        sums = combined(rule, replies, {}, STATISTICS)
        assert (sums.weight, sums.updates) == (5, 5)
        torch.testing.assert_close(sums.total("holds"), torch.tensor([3.0, 0.0]))
        torch.testing.assert_close(sums.total("centroids")[0, 0] / 3, torch.ones(3))


def replies_with_liars(rare: int, liars: int, head: bool = False) -> list[Update]:
    """Return statistics of eight honest clients and some liars who claim all four classes, each shifted by one.

    Six honest clients hold classes 1 to 3; ``rare`` others hold class 0 and one more.
    """
    generator = torch.Generator().manual_seed(rare + liars)
    truth = 3 * torch.nn.functional.normalize(torch.randn(1, 4, 6, generator=generator), dim=-1)
    replies = []
    for number in range(8 + liars):
        holds = torch.ones(4, dtype=torch.bool)
        if number < 8:
            holds = torch.tensor([number >= 8 - rare, number < 6, number < 6, True])
        own = truth.roll(1, 1) if number >= 8 else truth + 0.1 * torch.randn(1, 4, 6, generator=generator)
        tensors = {"centroids": own * holds[:, None], "holds": holds}
        if head:
            tensors["head"] = START["head"] + 1 + 0.01 * torch.randn(4, 3, generator=generator)
        replies.append(Update(number, 10, tensors))
    return replies


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("liars", [1, 2])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("rare", [1, 2])
def test_liars_do_not_move_class_statistics_out_of_the_honest_range(rule, liars, head, rare):
    """Not even of a class that only one honest client holds: who lies about others is not asked."""
    replies = replies_with_liars(rare, liars, head)
    sums = combined(rule, replies, START if head else {}, STATISTICS)
    means = sums.total("centroids")[0] / sums.total("holds")[:, None]
    for row in range(4):
        good = torch.stack([r.tensors["centroids"][0, row] for r in replies[:8] if r.tensors["holds"][row]])
        assert (means[row] >= good.amin(0) - 0.3).all(), row
        assert (means[row] <= good.amax(0) + 0.3).all(), row


@pytest.mark.parametrize(
    ("holders", "liars", "believed"), [(2, 1, 1.0), (3, 1, 0.5), (4, 1, 0.0), (3, 2, 0.0), (1, 1, 1.0)]
)
def test_who_is_believed_about_a_class_of_few_holders(holders, liars, believed):
    """What the page does not promise: who tells the truth elsewhere, as copied from others, is heard first."""
    generator = torch.Generator().manual_seed(0)
    values = torch.zeros(10 + liars, 6, 4, dtype=torch.float64)
    values[:10, 1:] = 1 + 0.1 * torch.randn(10, 5, 4, generator=generator, dtype=torch.float64)
    values[:holders, 0] = 1
    values[10:, 0] = 101  # the lie
    values[10:, 1:] = values[:10, 1:].mean(0)
    mean = statistic(values, 2, 2)[0] / (holders + liars)
    torch.testing.assert_close(mean, torch.full((4,), 1 + 100 * believed, dtype=torch.float64))


def test_two_who_claim_no_other_class_are_believed_beside_two_holders():
    generator = torch.Generator().manual_seed(0)
    values = torch.zeros(10, 6, 4, dtype=torch.float64)
    values[:8, 1:] = 1 + 0.1 * torch.randn(8, 5, 4, generator=generator, dtype=torch.float64)
    values[:2, 0], values[8:, 0] = 1, 101
    assert torch.equal(statistic(values, 2, 2)[0] / 4, torch.full((4,), 101.0, dtype=torch.float64))


def test_a_lone_liar_moves_a_class_that_nobody_else_holds_and_no_other():
    replies = replies_with_liars(0, 1)
    sums = combined(Median(), replies, {}, STATISTICS)
    assert sums.total("holds").tolist() == [1, 7, 7, 9]
    assert torch.equal(sums.total("centroids")[0, 0] == 0, torch.zeros(6, dtype=torch.bool))


def test_krum_keeps_those_that_agree():
    changes = honest(7)
    changes[8] *= -1
    changes[9] = torch.tensor([1.0, -1.0, 1.0])
    agreements = agreement(updates_of(changes), START)
    assert krum(agreements, attackers=2, keep=8) == list(range(8))
    assert krum(agreements, attackers=2, keep=1)[0] < 8


def test_krum_keeps_no_attacker_when_clients_fail():
    """Two of ten clients fail: of the eight left, keep=8 must not mean all."""
    changes = torch.cat([honest(0, 6), -honest(1, 2)])
    assert change_of(Krum(attackers=2, keep=8), changes).min() > 0.7


def test_krum_keep_one_is_one_of_the_updates():
    changes = honest(4)
    moved = change_of(Krum(attackers=2, keep=1, norm_bound=1e9), changes)
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


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("clients", [1, 2])
def test_fewer_updates_than_attackers_are_still_a_result(rule, clients):
    """Only a rule asked by hand gets so few: a round of them is drawn again."""
    changes = torch.full((clients, 4, 3), 0.5)
    torch.testing.assert_close(change_of(rule, changes), changes[0], atol=1e-5, rtol=1e-5)


def test_class_sums_and_counts_become_means_and_their_holders():
    """Of class 1 there are sums and no image, of class 2 two images that sum up to nothing; nan counts as 0."""
    sums = torch.tensor([[[4.0, 0.0], [5.0, 5.0], [0.0, 0.0], [torch.nan, 6.0], [7.0, 7.0]]])
    counts = torch.tensor([2, 0, 2, 3, 1])
    adding = Median().adding({}, Summing(STATISTICS))
    adding.add(Update(0, 8, {"centroids": sums, "holds": counts}))
    (received,) = adding.received
    assert received.tensors["holds"].tolist() == [True, False, False, True, True]
    assert received.tensors["centroids"].tolist() == [[[2, 0], [0, 0], [0, 0], [0, 2], [7, 7]]]


def test_a_class_is_held_if_all_of_its_parts_are_there():
    sums = torch.tensor([[[1.0], [1.0]], [[0.0], [1.0]]])
    adding = Median().adding({}, Summing(STATISTICS))
    adding.add(Update(0, 8, {"centroids": sums, "holds": torch.tensor([1, 1])}))
    assert adding.received[0].tensors["holds"].tolist() == [False, True]


def test_the_median_is_that_of_all_however_few_attackers_are_meant():
    """Of seven values the fourth, and not the mean without one at either end."""
    changes = torch.tensor([-0.5, 0.1, 0.2, 1.0, 5.0, 6.0, 100.0])[:, None, None].expand(7, 4, 3)
    rule = {"mix": False, "attackers": 1, "norm_bound": 1e9}
    torch.testing.assert_close(change_of(Median(**rule), changes), torch.ones(4, 3))
    trimmed = change_of(TrimmedMean(**rule), changes)
    torch.testing.assert_close(trimmed, torch.full((4, 3), (0.1 + 0.2 + 1 + 5 + 6) / 5))


def test_krum_takes_the_median_of_class_statistics_and_the_mean_of_all_but_the_attackers():
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    moves = [[1.0, 0.1], [1.0, 0.2], [1.0, 0.3], [1.0, 0.4], [-1.0, 1.0]]
    start = {"head": torch.zeros(1, 2)}
    updates = [
        Update(n, 9, {"head": torch.tensor([move]), "centroids": torch.full((1, 1, 1), value)})
        for n, (move, value) in enumerate(zip(moves, values, strict=True))
    ]
    sums = combined(Krum(attackers=1, norm_bound=1e9), updates, start)
    torch.testing.assert_close(sums.mean("head"), torch.tensor([[1.0, 0.25]]))
    assert sums.total("centroids").item() == pytest.approx(15)


def test_of_two_updates_where_two_may_be_bad_krum_takes_one():
    changes = torch.stack([torch.ones(4, 3), -torch.ones(4, 3)])
    torch.testing.assert_close(change_of(Krum(attackers=2), changes), torch.ones(4, 3))


@pytest.mark.parametrize("rule", [Mean(), Mean(norm_bound=2.0), *RULES], ids=lambda rule: rule.described)
def test_of_no_updates_there_are_sums_of_nothing(rule):
    sums = combined(rule, [], START)
    assert (sums.weight, sums.updates, sums.tensors) == (0, 0, {})


def test_a_rule_is_described_with_its_bound_and_a_mean_needs_one_update():
    assert Mean().described == "mean"
    assert Mean(norm_bound=2.0).described == "mean with norm_bound=2.0"
    assert Mean(norm_bound=2.0).needed(5) == Mean().least == 1
    Mean().check(1)
    with pytest.raises(ConfigError, match="at least 1 updates"):
        Mean().check(0)


def test_counts_that_noise_is_on_are_left_as_they_are_and_so_are_their_sums():
    """Three clients count 2.5 images each, whose sums are 5: no mean is taken at the clients' word."""
    updates = [
        Update(n, 1, {"centroids": torch.full((1, 1, 4), 5.0), "holds": torch.tensor([2.5])})
        for n in range(3)
    ]
    sums = combined(Median(), updates, {}, STATISTICS)
    assert sums.total("holds").tolist() == [7.5]
    assert sums.total("centroids").flatten().tolist() == [15.0] * 4
