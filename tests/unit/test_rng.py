"""Named streams: the same names give the same numbers, other names share no state."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedcue.rng import _words, rng, torch_rng

WORDS = slice(3, 3 + 624)
"""Where a state of torch, seen as numbers of 64 bits, keeps the words of the Mersenne Twister."""


def words_of(generator: torch.Generator) -> np.ndarray:
    return generator.get_state().numpy().view(np.uint64)[WORDS]


def test_the_same_names_give_the_same_numbers():
    first, again = (torch.rand(1000, generator=torch_rng(3, "client", 4, 5)) for _ in range(2))
    assert torch.equal(first, again)
    assert np.array_equal(rng(3, "sampling", 4).random(10), rng(3, "sampling", 4).random(10))


def test_numbers_stay_what_they_are():
    assert torch.randint(0, 2**16, (4,), generator=torch_rng(0, "init", "head")).tolist() == [
        55246,
        20705,
        17991,
        25642,
    ]


def test_torch_draws_what_a_mersenne_twister_draws_from_these_words():
    twister = np.random.MT19937()
    words = _words(0, ("client", 1), 624)
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.randint(0, 2**16, (2000,), generator=torch_rng(0, "client", 1))
    assert np.array_equal(drawn.numpy(), twister.random_raw(2000) % 2**16)


def test_nothing_is_left_of_an_earlier_draw():
    normal = [torch.randn(3, generator=torch_rng(0, "a")) for _ in range(2)]
    assert torch.equal(*normal)


@pytest.mark.parametrize(("one", "other"), [((290, 54), (715, 39)), ((1526, 6), (1619, 29))])
def test_names_that_share_32_bits_of_a_hash_share_no_numbers(one, other):
    """These clients and rounds had the same generator when its seed had 32 bits."""
    first, second = (torch_rng(0, "client", *names) for names in (one, other))
    assert not np.isin(words_of(first), words_of(second)).any()
    assert (torch.rand(1000, generator=first) == torch.rand(1000, generator=second)).sum() < 5


def test_a_million_names_share_no_state():
    names = itertools.product(("client", "warm up"), range(5000), range(100))
    starts = {_words(0, name, 8).tobytes() for name in names}  # the first 256 bits of each state
    assert len(starts) == 1_000_000
    assert len({start[:4] for start in starts}) < 1_000_000, "32 bits would be shared"


def test_a_state_begins_with_the_words_of_its_names_and_goes_on_with_others():
    for client in range(100):
        words = words_of(torch_rng(0, "client", client))
        assert np.array_equal(words[:8], _words(0, ("client", client), 8))
        assert len(np.unique(words)) == 624


@pytest.mark.parametrize(
    ("one", "other"),
    [((0, 1), (0, "1")), ((0, "a", "b"), (0, "a, b")), ((0, 1, 23), (0, 12, 3)), ((0, "a"), (1, "a"))],
)
def test_names_that_look_alike_are_told_apart(one, other):
    assert not np.array_equal(words_of(torch_rng(*one)), words_of(torch_rng(*other)))
    assert rng(*one).bit_generator.state != rng(*other).bit_generator.state


def test_streams_of_numpy_share_no_state():
    states = {str(rng(0, "sampling", number).bit_generator.state["state"]) for number in range(2000)}
    assert len(states) == 2000


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    torch.rand(10, generator=torch_rng(0, "a"))
    assert torch.equal(torch.get_rng_state(), state)
