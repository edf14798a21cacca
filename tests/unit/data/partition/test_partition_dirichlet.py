"""Dirichlet label skew, in both published ways."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from support.datasets import CIFAR

from fedcue.data.partition import Dirichlet, dirichlet
from fedcue.data.partition.dirichlet import _ask, _relative, by_class, fill, log_dirichlet
from fedcue.errors import PartitionError
from fedcue.rng import rng


def test_dirichlet_clients_are_skewed_by_alpha() -> None:
    effective = []
    for alpha in (0.1, 0.3, 100.0):
        partition = Dirichlet(clients=100, alpha=alpha).split(CIFAR, rng(0, "partition"))
        train = partition.class_counts(CIFAR)
        assert np.all(train.sum(axis=1) == 500)
        share = train / 500
        effective.append(np.mean(1 / (share**2).sum(axis=1)))
        test = partition.class_counts(CIFAR, "test")
        assert np.abs(test.sum(axis=0) - 100).max() == 0
        assert np.abs(test - train / 5).max() < 1
    assert effective[0] < 15 < effective[1] < 35 < 80 < effective[2]


def test_class_wise_dirichlet_clients_differ_in_size() -> None:
    partition = Dirichlet(clients=100, alpha=0.3, flavour="class").split(CIFAR, rng(0, "partition"))
    sizes = np.array([len(part) for part in partition.train])
    assert sizes.sum() == 50_000
    assert sizes.min() >= 10
    assert sizes.max() > 1.1 * sizes.min()


def test_a_pick_is_uniform_among_the_clients_that_are_not_full() -> None:
    # two clients with room for two images each want the same two images: the first two picks get them
    sizes, supply = np.array([2, 2]), np.array([2, 2])
    log_q = np.log(np.array([[1 - 1e-12, 1e-12]] * 2))
    generator = rng(0, "picks")
    same = [2 in fill(sizes, log_q, supply, generator)[:, 0] for _ in range(600)]
    assert np.mean(same) == pytest.approx(1 / 2, abs=0.06)  # a third if clocks had uniform gaps


@pytest.mark.parametrize("alpha", [0.05, 0.3, 2.0])
def test_proportions_have_the_moments_of_a_dirichlet_distribution(alpha: float) -> None:
    classes, draws = 5, 20_000
    q = np.exp(log_dirichlet(alpha, draws, classes, rng(0, "dirichlet")))
    assert q.sum(axis=1) == pytest.approx(np.ones(draws))
    assert q.mean(axis=0) == pytest.approx(np.full(classes, 1 / classes), abs=0.02)
    assert (q**2).sum(axis=1).mean() == pytest.approx((alpha + 1) / (classes * alpha + 1), abs=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_filling_uses_up_every_class_and_fills_every_client_exactly(seed: int) -> None:
    generator = rng(seed, "fill")
    supply = np.array([1, 7, 2, 30, 0, 20])
    sizes = np.array([20, 1, 9, 30])
    counts = fill(sizes, log_dirichlet(0.1, 4, 6, generator), supply, generator)
    assert counts.sum(axis=0).tolist() == supply.tolist()
    assert counts.sum(axis=1).tolist() == sizes.tolist()


def test_a_class_that_is_used_up_is_not_asked_for_again() -> None:
    # both want class 0, of which there is one; what is left follows their other proportions, here certain
    log_q = np.log(np.array([[1 - 2e-9, 1e-9, 1e-18], [1 - 2e-9, 1e-18, 1e-9]]))
    generator = rng(0, "fill")
    for _ in range(50):
        counts = fill(np.array([6, 6]), log_q, np.array([1, 6, 5]), generator)
        assert counts[:, 0].sum() == 1
        assert counts[0, 2] <= 1
        assert counts[1, 1] <= 1


def test_class_wise_clients_at_the_average_get_nothing_more() -> None:
    train = np.full(50, 40)
    test = np.full(50, 10)
    for seed in range(5):
        counts = by_class(train, test, 10, 0.5, 10, rng(seed, "partition")).train
        for client in range(10):
            before = np.cumsum(counts[client]) - counts[client]
            assert not counts[client][before >= 200].any()


def test_a_class_wise_draw_that_leaves_a_client_too_small_is_drawn_again() -> None:
    train, test = np.full(4, 30), np.full(4, 30)
    smallest = [
        by_class(train, test, 6, 0.3, 12, rng(seed, "partition")).train.sum(axis=1).min()
        for seed in range(20)
    ]
    assert min(smallest) == 12  # the smallest size that is allowed is accepted


def test_a_class_without_test_images_is_shared_out_class_by_class_too() -> None:
    without = by_class(np.array([40, 0, 40]), np.array([30, 0, 30]), 4, 5.0, 5, rng(0, "partition"))
    assert without.train.sum(axis=0).tolist() == [40, 0, 40], "nor is one without training images"
    counts = by_class(np.full(3, 40), np.array([30, 0, 30]), 4, 5.0, 5, rng(0, "partition"))
    assert counts.train.sum(axis=0).tolist() == [40, 40, 40]
    assert counts.test.sum(axis=0).tolist() == [30, 0, 30]
    assert counts.test.sum(axis=1).min() > 0


def test_a_class_wise_draw_that_leaves_a_client_untested_is_drawn_again() -> None:
    """Six clients and eight test images, all of one class that some draws give to few of them."""
    for seed in range(20):
        counts = by_class(np.full(4, 60), np.array([8, 0, 0, 0]), 6, 0.5, 1, rng(seed, "partition"))
        assert counts.test.sum(axis=1).min() > 0


def test_filling_stays_what_it_is() -> None:
    """The same seed fills clients alike in every version, also where a class has no image."""
    generator = rng(0, "fill")
    counts = fill(np.array([4, 3, 5]), log_dirichlet(0.5, 3, 4, generator), np.array([5, 0, 1, 6]), generator)
    assert counts.tolist() == [[1, 0, 0, 3], [3, 0, 0, 0], [1, 0, 1, 3]]


def canned(monkeypatch: pytest.MonkeyPatch, *draws: list[list[int]]) -> list[int]:
    """Let draws of training images be these, again and again; return where they are counted."""
    drawn: list[int] = []

    def draw(*given: object) -> np.ndarray:
        drawn.append(len(drawn))
        return np.array(draws[drawn[-1] % len(draws)])

    monkeypatch.setattr(dirichlet, "_one_draw_by_class", draw)
    return drawn


def test_after_fifty_draws_the_best_of_their_smallest_clients_is_told(monkeypatch) -> None:
    drawn = canned(monkeypatch, [[17, 0], [1, 2]], [[6, 0], [6, 8]], [[10, 5], [4, 1]])
    said = r"fewer than 7 training images .* in each of 50 draws \(best smallest client: 6\)"
    with pytest.raises(PartitionError, match=said):
        by_class(np.array([16, 4]), np.array([5, 5]), 2, 0.5, 7, rng(0, "partition"))
    assert len(drawn) == 50


def test_the_first_draw_that_is_good_enough_is_taken(monkeypatch) -> None:
    drawn = canned(monkeypatch, [[17, 0], [1, 2]], [[6, 0], [7, 7]], [[10, 0], [5, 5]])
    counts = by_class(np.array([15, 5]), np.array([5, 5]), 2, 0.5, 7, rng(0, "partition"))
    assert counts.train.tolist() == [[10, 0], [5, 5]]
    assert len(drawn) == 3


def test_as_many_images_as_the_smallest_clients_need_are_enough() -> None:
    supply = np.full(2, 20)
    assert by_class(supply, supply, 4, 1e9, 10, rng(0, "partition")).train.sum(axis=1).tolist() == [10] * 4
    with pytest.raises(
        PartitionError, match="4 clients with at least 11 training images need 44, there are 40"
    ):
        by_class(supply, supply, 4, 1e9, 11, rng(0, "partition"))


def test_who_has_just_the_average_gets_nothing_more() -> None:
    """Each class goes to one client as a whole: the second class to the other one."""
    for seed in range(10):
        counts = by_class(np.array([2, 2]), np.array([2, 2]), 2, 1e-6, 1, rng(seed, "partition"))
        assert counts.train.sum(axis=1).tolist() == [2, 2]
        assert sorted(counts.train.ravel().tolist()) == [0, 0, 2, 2]
        single = by_class(np.array([1, 1]), np.array([1, 1]), 2, 1e-6, 1, rng(seed, "partition"))
        assert single.train.sum(axis=1).tolist() == [1, 1], "who has nothing is below the average"


def test_class_wise_clients_stay_what_they_are() -> None:
    counts = by_class(np.full(5, 40), np.full(5, 10), 4, 0.5, 5, rng(3, "p"))
    assert counts.train.tolist() == [
        [24, 3, 3, 19, 29],
        [0, 11, 6, 8, 10],
        [5, 15, 5, 4, 1],
        [11, 11, 26, 9, 0],
    ]
    assert counts.test.tolist() == [[6, 0, 1, 5, 7], [0, 3, 1, 2, 3], [1, 4, 1, 1, 0], [3, 3, 7, 2, 0]]


def test_filling_many_clients_of_few_classes_stays_what_it_is() -> None:
    """Many are refused here, again and again."""
    generator = rng(0, "many")
    proportions = log_dirichlet(0.05, 40, 30, generator)
    counts = fill(np.full(40, 50), proportions, np.r_[np.full(29, 60), 260], generator)
    assert hashlib.sha256(counts.tobytes()).hexdigest()[:12] == "ccdb7c4f5c37"


class Same:
    """A generator that draws the same number again and again."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self, shape: int | tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.number)


@pytest.mark.parametrize(
    ("number", "taken", "expected"),
    [
        (0.0, [9, 9, 9], 0),
        (0.0, [5, 9, 9], 1),
        (1 - 2.0**-53, [9, 9, 9], 2),
        (1 - 2.0**-53, [9, 9, 5], 1),
        (0.5, [9, 9, 9], 1),
        (0.5, [9, 5, 9], 2),
        (0.4999, [9, 4, 6], 0),
    ],
)
def test_the_ends_of_what_is_drawn_belong_to_the_first_and_the_last_class_that_would_take_it(
    number: float, taken: list[int], expected: int
) -> None:
    """The second of two clients asks: next to one, its number and a draw add up to two."""
    log_q = np.log(np.full((2, 3), 1 / 3))
    ladder = np.cumsum(np.exp(log_q), axis=1)
    ladder = ladder / ladder[:, -1:] + np.arange(2)[:, None]
    asks = (np.array([1]), np.array([5]), ladder, log_q, np.array(taken))
    generator: Any = Same(number)
    assert _ask(*asks, generator).tolist() == [expected]


def test_what_would_be_denormal_is_zero() -> None:
    below = np.nextafter(-600.0, -np.inf)
    weights = _relative(np.array([[0.0, -600.0, below], [700.0, 1400.0, 801.0]]))
    assert weights[0].tolist() == [1.0, np.exp(-600.0), 0.0]
    assert weights[1].tolist() == [0.0, 1.0, np.exp(-599.0)]
    assert _relative(np.array([3.0, 3.0])).tolist() == [1.0, 1.0]
