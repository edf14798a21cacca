"""Secure summation under random drop-outs, thresholds, sizes and hostile servers."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from secure_round import STEPS, Round, session, stream, vectors

from fedcue.secure import messages, shamir
from fedcue.secure.fixed_point import FixedPoint
from fedcue.secure.refusals import MessageRefused, OutOfRange, SecureSumError, SharesDoNotFit, TooFewClients
from fedcue.secure.session import Step


@st.composite
def sessions(draw, most: int = 9):
    clients = draw(st.sets(st.integers(0, 2**32 - 1) | st.integers(0, 20), min_size=2, max_size=most))
    threshold = draw(st.integers(len(clients) // 2 + 1, len(clients)))
    return session(clients, threshold, draw(st.integers(1, 40)), round=draw(st.integers(0, 99)))


@st.composite
def rounds(draw):
    of = draw(sessions())
    silent = draw(st.dictionaries(st.sampled_from(of.participants), st.sampled_from(STEPS)))
    inputs = {
        client: np.array(draw(st.lists(st.integers(0, 2**64 - 1), min_size=of.words, max_size=of.words)), np.uint64)
        for client in of.participants
    }  # fmt: skip
    return Round(of, inputs, silent, restart=draw(st.booleans()))


@given(rounds())
@settings(max_examples=120, deadline=None)
def test_the_sum_of_those_who_finished_is_exact_or_the_round_fails_by_name(played):
    of = played.session
    left = [sum(played.answers(step, client) for client in of.participants) for step in STEPS]
    if min(left) < of.threshold:
        with pytest.raises(TooFewClients, match=f"threshold is {of.threshold}"):
            played.play()
        assert played.server.step == Step.FAILED
        with pytest.raises(SecureSumError, match="no sum"):
            str(played.server.total)
        kept = json.loads(played.server.written())
        assert not any(base64.b64decode(kept.pop("total")))
        assert not any(kept[name] for name in kept if name not in ("session", "step"))
    else:
        played.play()
        survivors = tuple(client for client in of.participants if played.answers(Step.MASK, client))
        assert played.server.survivors == survivors
        np.testing.assert_array_equal(
            played.server.total, np.sum([played.inputs[u] for u in survivors], axis=0)
        )


@given(rounds(), st.data())
@settings(max_examples=50, deadline=None)
def test_however_a_server_asks_no_honest_client_reveals_both_shares_of_anyone(played, data):
    """The server may send any lists of survivors and of real signatures, again and again, to anybody."""
    of = played.session
    assume(sum(played.answers(Step.MASK, client) for client in of.participants) >= of.threshold)
    played.play(until=Step.CONFIRM)
    shared = sorted(client for client in of.participants if played.answers(Step.SHARE, client))
    subsets = st.sets(st.sampled_from(shared), min_size=1)
    signatures: dict[frozenset[int], dict[int, bytes]] = defaultdict(dict)
    kinds: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    sets: dict[int, set[bytes]] = defaultdict(set)
    for _ in range(data.draw(st.integers(1, 25))):
        asked = data.draw(st.sampled_from(shared))
        client, told = played.clients[asked], frozenset(data.draw(subsets | st.just(set(shared))))
        request = messages.Survivors(dict.fromkeys(told, b"")).encode(of, asked)
        try:
            reply = client.confirm(request)
            signatures[told][asked] = messages.Confirmation.decode(reply, of, asked).signature
        except MessageRefused:
            pass
        shown = data.draw(st.sampled_from(sorted(signatures, key=sorted))) if signatures else told
        try:
            reply = client.unmask(messages.Confirmations(signatures[shown]).encode(of, asked))
        except MessageRefused:
            continue
        for owner, record in messages.Revealed.decode(reply, of, asked).records.items():
            kinds[asked, owner].add(record[:1])
            sets[owner].add(record[:1])
    assert all(len(kind) == 1 for kind in kinds.values())
    assert all(len(kind) == 1 for kind in sets.values()), "two sets of survivors were both confirmed"


@given(sessions(), st.data())
@settings(max_examples=60, deadline=None)
def test_any_changed_message_is_refused_and_changes_nothing(of, data):
    played = Round(of, vectors(of))
    played.play(until=data.draw(st.sampled_from(STEPS[1:])))
    client = data.draw(st.sampled_from(of.participants))
    request = played.server.requests()[client]
    header = 49
    place = data.draw(st.integers(0, header - 1) | st.integers(0, len(request) - 1))
    damaged = bytearray(request)
    damaged[place] ^= data.draw(st.integers(1, 255))
    before = played.clients[client].written()
    with pytest.raises(MessageRefused):
        played.answer(client, bytes(damaged))
    with pytest.raises(MessageRefused):
        played.answer(client, request[: data.draw(st.integers(0, len(request) - 1))])
    with pytest.raises(MessageRefused):
        played.answer(client, request + b"\0")
    assert played.clients[client].written() == before
    np.testing.assert_array_equal(played.play().server.total, played.expected())


@given(st.binary(min_size=32, max_size=32), st.data())
@settings(max_examples=100, deadline=None)
def test_any_threshold_of_shares_gives_the_secret_and_one_fewer_another(secret, data):
    clients = data.draw(st.sets(st.integers(0, 2**32 - 1), min_size=2, max_size=12))
    threshold = data.draw(st.integers(2, len(clients)))
    shares = shamir.split(secret, threshold, clients, stream(secret, threshold))
    chosen = data.draw(st.permutations(sorted(clients)))
    assert shamir.combine({u: shares[u] for u in chosen[:threshold]}, threshold) == secret
    fewer = {u: shares[u] for u in chosen[: threshold - 1]}
    with pytest.raises(SecureSumError, match="are needed"):
        shamir.combine(fewer, threshold)
    with suppress(SharesDoNotFit):
        assert shamir.combine(fewer, threshold - 1) != secret


@given(st.integers(0, 40), st.data())
@settings(max_examples=100, deadline=None)
def test_quantised_sums_do_not_depend_on_order_and_are_near_the_real_ones(bits, data):
    fixed = FixedPoint(bits, min(2.0 ** (53 - bits), 1e6))
    numbers = st.lists(st.floats(-fixed.limit, fixed.limit), min_size=3, max_size=3)
    clients = data.draw(st.lists(numbers, min_size=1, max_size=8))
    assume(len(clients) <= fixed.most_clients)
    packed = [fixed.pack({"x": np.array(values)}) for values in clients]
    total = fixed.add_up(packed)
    np.testing.assert_array_equal(total, fixed.add_up(data.draw(st.permutations(packed))))
    got = fixed.unpack(total, {"x": (3,)})["x"]
    wanted = np.sum(clients, axis=0)
    assert np.abs(got - wanted).max() <= len(clients) * (0.5 / fixed.scale + fixed.limit * 2.0**-50)


@given(st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 5))
def test_out_of_range_is_refused_by_name_and_never_wrapped(value, place):
    fixed = FixedPoint(20, 100.0)
    values = np.zeros(6)
    values[place] = value
    if abs(value) <= 100:
        assert (
            abs(fixed.unpack(fixed.pack({"head": values}), {"head": (6,)})["head"][place] - value) <= 2.0**-21
        )
    else:
        with pytest.raises(OutOfRange, match=f"'head' holds .* at position {place} "):
            fixed.pack({"head": values})
