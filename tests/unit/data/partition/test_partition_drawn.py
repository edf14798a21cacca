"""Clients drawn on demand: any number of them, each the same whenever it is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from support.datasets import made

from fedcue.data.clients import Clients, make_clients
from fedcue.data.dataset import Computed
from fedcue.data.partition.drawn import Drawn
from fedcue.data.readers.digits import Digits
from fedcue.errors import PartitionError
from fedcue.rng import rng

DIGITS = Digits().load(0)


def clients(count: int, seed: int = 0, **options: float) -> Clients:
    rule = Drawn(clients=count, **options)
    return make_clients(DIGITS, rule.split(DIGITS, rng(seed, "partition")), seed=seed)


def test_a_million_clients_are_made_one_at_a_time() -> None:
    many = clients(1_000_000)
    assert len(many) == 1_000_000
    last = many[-1]
    assert last.id == 999_999
    assert last.name == "client-999999"
    assert len(np.unique(last.train)) == 20
    assert len(np.unique(last.test)) == 5
    assert not DIGITS.is_test[last.train].any()
    assert DIGITS.is_test[last.test].all()
    assert many.train_sizes.shape == (1_000_000,)
    assert many.train_sizes.strides == (0,), "sizes that are all alike take no room"


def test_a_client_depends_on_seed_and_number_alone() -> None:
    few, many = clients(10), clients(100_000)
    for number in (0, 7):
        np.testing.assert_array_equal(few[number].train, many[number].train)
        np.testing.assert_array_equal(few[number].test, many[number].test)
    assert not np.array_equal(few[0].train, few[1].train)
    assert not np.array_equal(few[0].train, clients(10, seed=1)[0].train)


def test_proportions_follow_alpha_and_are_those_of_the_test_images() -> None:
    skewed, even = clients(60, alpha=0.1, train=50, test=20), clients(60, alpha=1000.0, train=50, test=20)
    assert max(np.count_nonzero(client.class_priors) for client in skewed[:20]) < 10
    assert np.mean([client.class_priors.max() for client in even]) < 0.3
    test_counts = np.stack([np.bincount(client.test_labels, minlength=10) for client in skewed])
    train = np.stack([client.class_priors for client in skewed])
    assert (test_counts.argmax(1) == train.argmax(1)).mean() > 0.8


def test_a_client_draws_from_classes_and_not_from_what_there_is_most_of() -> None:
    """With even proportions, half of the images are of the class that a tenth of all images show."""
    rare = made(np.tile([0] * 9 + [1], 80), np.arange(800) >= 400)
    drawn = Drawn(clients=40, train=4, test=4, alpha=1000.0).split(rare, rng(0, "partition"))
    for part in (drawn.train, drawn.test):
        assert rare.labels[np.concatenate(list(part))].mean() == pytest.approx(0.5, abs=0.1)


def test_more_images_than_there_are_is_refused() -> None:
    with pytest.raises(PartitionError, match=r"partition.train=5000, but digits has only 1438 train images"):
        clients(3, train=5000)


def test_a_computed_sequence_behaves_like_a_list() -> None:
    squares = Computed(5, lambda number: number**2)
    assert list(squares) == [0, 1, 4, 9, 16]
    assert squares[-1] == 16
    assert squares[1:3] == [1, 4]
    with pytest.raises(IndexError):
        squares[5]


def test_clients_stay_what_they_are() -> None:
    """The same seed draws the same images in every version."""
    first = clients(10)[0]
    assert (first.train.tolist()[:5], first.test.tolist()) == (
        [102, 171, 250, 350, 401],
        [418, 732, 1133, 1136, 1734],
    )


def test_all_images_may_be_drawn_and_no_more() -> None:
    dataset = made([0, 1] * 20, np.arange(40) >= 30)
    whole = Drawn(clients=2, train=30, test=10).split(dataset, rng(0, "partition"))
    assert whole.train[1].tolist() == list(range(30))
    assert whole.test[1].tolist() == list(range(30, 40))
    assert (whole.train_sizes.tolist(), whole.test_sizes.tolist()) == ([30, 30], [10, 10])
    assert whole.shares_images
    assert (whole.names[1], whole.domains[1], len(whole)) == ("client-1", "", 2)
    assert (whole.pool("train").tolist(), whole.pool("test").tolist()) == (
        list(range(30)),
        list(range(30, 40)),
    )
    with pytest.raises(PartitionError, match="partition.test=11, but made has only 10 test images"):
        Drawn(clients=2, train=30, test=11).split(dataset, rng(0, "partition"))


def test_who_wants_more_images_than_its_classes_have_draws_others_too() -> None:
    """A client whose proportions are those of one class, as far as numbers can tell."""
    dataset = made(np.arange(40) % 10, np.arange(40) >= 30)
    few = Drawn(clients=5, train=20, test=5, alpha=1e-4).split(dataset, rng(0, "partition"))
    assert [len(np.unique(few.train[client])) for client in range(5)] == [20] * 5


def test_what_a_client_has_of_a_class_without_images_goes_to_the_others() -> None:
    dataset = made([0, 2] * 20, np.arange(40) >= 30)
    drawn = Drawn(clients=5, train=6, test=2).split(dataset, rng(0, "partition"))
    assert [len(part) for part in drawn.train] == [6] * 5
    assert set(dataset.labels[np.concatenate(list(drawn.train))].tolist()) == {0, 2}


def test_every_client_stays_what_it_is() -> None:
    dataset = made(np.arange(60) % 3, np.arange(60) >= 36)
    drawn = Drawn(clients=3, train=5, test=2, alpha=0.5).split(dataset, rng(0, "partition"))
    assert [part.tolist() for part in drawn.train] == [
        [10, 11, 12, 14, 31],
        [0, 6, 12, 15, 21],
        [9, 17, 29, 33, 35],
    ]
    assert [part.tolist() for part in drawn.test] == [[45, 51], [48, 51], [41, 51]]
