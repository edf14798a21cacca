"""Noise that nobody can guess: where keys come from, and that no two streams share one."""

from __future__ import annotations

import itertools
import os
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from support.noise import add_gaussian, gaussian

from fedcue.errors import ConfigError
from fedcue.privacy.noise import grid, snap
from fedcue.privacy.stream import KEY_BYTES, LONGEST, NoiseStream, simulated_key

KNOWN_KEY = bytes(range(32))


def test_words_are_the_keystream_of_chacha20():
    """The first block for a key of zeros, as RFC 8439 prints it (A.1, test vector 1)."""
    block = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert NoiseStream(bytes(32), repeatable=True).uniform_words(8).astype("<u8").tobytes() == block


def test_words_do_not_depend_on_how_many_are_asked_for_at_once():
    whole = NoiseStream(KNOWN_KEY, repeatable=True).uniform_words(40_000)
    stream = NoiseStream(KNOWN_KEY, repeatable=True)
    parts = [stream.uniform_words(count) for count in (1, 0, 39_000, 999)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert stream.drawn == 8 * 40_000


def test_each_secret_stream_draws_32_bytes_of_the_system(monkeypatch):
    asked = []

    def urandom(size: int, real=os.urandom) -> bytes:
        asked.append(size)
        return real(size)

    monkeypatch.setattr(os, "urandom", urandom)
    streams = [NoiseStream.secret("server", 0) for _ in range(5)]
    assert len(asked) == 5
    assert min(asked) >= 32
    assert len({int(stream.uniform_words(1)[0]) for stream in streams}) == 5
    assert not any(stream.repeatable for stream in streams)


def test_every_bit_of_the_systems_key_changes_the_words(monkeypatch):
    first = set()
    for bit in range(256):
        monkeypatch.setattr(os, "urandom", lambda size, bit=bit: (1 << bit).to_bytes(size, "little"))
        first.add(int(NoiseStream.secret().uniform_words(1)[0]))
    assert len(first) == 256


def test_a_simulated_stream_repeats_and_asks_the_system_for_nothing(monkeypatch):
    monkeypatch.setattr(os, "urandom", None)
    first, again = (NoiseStream.simulated(3, "client", 4, 5) for _ in range(2))
    assert np.array_equal(first.uniform_words(100), again.uniform_words(100))
    assert first.repeatable


def test_simulated_keys_stay_what_they_are():
    assert (
        simulated_key(0, "client", 1, 2).hex()
        == "ffe81a64c9f49989149f6beae9f1308580bc302cb9f656f8ca1d3e210186b6b3"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "a"), (1, "a")),
        ((0, 1), (0, "1")),
        ((0, "a", "b"), (0, "a, b")),
        ((0, "a", "b"), (0, "a', 'b")),
        ((0, "client", 1, 23), (0, "client", 12, 3)),
        ((1, 2), (12,)),
        ((0,), (0, "")),
    ],
)
def test_names_that_look_alike_have_different_keys(one, other):
    assert simulated_key(*one) != simulated_key(*other)


def test_no_two_of_many_names_share_a_key():
    names = itertools.product(range(2), ("client", "server"), range(500), range(100))
    keys = {simulated_key(*name) for name in names}
    assert len(keys) == 200_000
    assert len({key[:4] for key in keys}) < 200_000, "keys of 32 bits would be shared"


def test_a_key_of_another_length_is_refused():
    with pytest.raises(ValueError, match="4 bytes. ChaCha20 needs 32"):
        NoiseStream(b"1234", repeatable=False)


def test_a_stream_is_not_read_in_another_process(monkeypatch):
    stream = NoiseStream.secret()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="another process"):
        stream.uniform_words(1)


def test_a_stream_ends_before_it_repeats():
    assert LONGEST == 64 * 2**32, "blocks of 64 bytes, counted in 32 bits"
    stream = NoiseStream.secret()
    stream.drawn = LONGEST - 8
    stream.uniform_words(1)
    with pytest.raises(RuntimeError, match="Make another"):
        stream.uniform_words(1)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(ConfigError, match=r"cryptography.*pip install 'fedcue\[privacy\]'"):
        NoiseStream.secret()


# Guessing: who can try all keys tells two neighbours apart for certain

NEIGHBOURS = torch.zeros(20), torch.full((20,), 0.01)


def guessed(release: torch.Tensor, keys: range) -> list[int]:
    """Return which neighbour a release came from, for all keys that explain it."""
    found = []
    for key in keys:
        stream = NoiseStream(key.to_bytes(KEY_BYTES, "little"), repeatable=True)
        left = release - gaussian(release.shape, 1.0, stream)
        found += [
            which for which, values in enumerate(NEIGHBOURS) if torch.equal(left, snap(values, grid(1.0)))
        ]
    return found


@pytest.mark.parametrize("secret", [0, 1])
def test_a_key_cut_short_is_guessed_and_a_whole_one_is_not(monkeypatch, secret):
    real = os.urandom
    bits = 8  # in place of the 32 that a generator of torch would take: the attack only takes longer
    monkeypatch.setattr(os, "urandom", lambda size: real(bits // 8) + bytes(size - bits // 8))
    cut = add_gaussian(NEIGHBOURS[secret], 1.0, NoiseStream.secret())
    assert guessed(cut, range(2**bits)) == [secret]

    monkeypatch.setattr(os, "urandom", real)
    whole = add_gaussian(NEIGHBOURS[secret], 1.0, NoiseStream.secret())
    assert guessed(whole, range(2**bits)) == []


def test_a_generator_of_torch_takes_32_bits_of_a_seed():
    """Why noise does not come from one."""
    high, low = (torch.Generator().manual_seed(seed) for seed in (5 + 7 * 2**32, 5))
    assert torch.equal(torch.randn(100, generator=high), torch.randn(100, generator=low))


def test_noise_touches_no_generator_of_torch_or_numpy(monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("a generator that can be guessed")

    for module, names in (
        (torch, ("randn", "rand", "randint", "normal", "Generator", "manual_seed")),
        (np.random, ("default_rng", "Generator", "RandomState", "SeedSequence", "normal", "random")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, refused)
    state = torch.get_rng_state()
    assert add_gaussian(torch.zeros(10), 1.0, NoiseStream.secret()).ne(0).all()
    assert torch.equal(torch.get_rng_state(), state)


def test_floats_are_the_first_53_bits_of_the_words():
    words, floats = (NoiseStream.simulated(0, "floats") for _ in range(2))
    expected = [int(word) // 2**11 / 2**53 for word in words.uniform_words(1000)]
    found = floats.uniform_floats(1000)
    assert found.tolist() == expected
    assert 0 <= found.min() < 0.01
    assert 0.99 < found.max() < 1
