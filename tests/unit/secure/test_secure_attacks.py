"""What a server, alone or with some clients, can try; and that what it holds says nothing of one client."""

from __future__ import annotations

import json
from base64 import b64decode

import numpy as np
import pytest
from scipy.stats import chi2, kstest
from secure_round import Round, identity, session, stream, vectors

from fedcue.secure import keys, masks, messages, shamir
from fedcue.secure.refusals import MessageRefused
from fedcue.secure.session import Step

WORDS = 1 << 15


def looks_uniform(words: np.ndarray) -> bool:
    """Chi-square of the bytes at each of the eight places, balance of the 64 bits, and KS of the whole."""
    places = words.astype("<u8").view(np.uint8).reshape(-1, 8)
    counts = np.stack([np.bincount(places[:, place], minlength=256) for place in range(8)])
    expected = len(words) / 256
    statistic = ((counts - expected) ** 2 / expected).sum()
    bits = np.unpackbits(places, axis=1).mean(0)
    return bool(
        0.001 < chi2.sf(statistic, 8 * 255) < 0.999
        and np.abs(bits - 0.5).max() < 4.5 * 0.5 / np.sqrt(len(words))
        and kstest(words / 2.0**64, "uniform").pvalue > 0.001
    )


def masked(played: Round, client: int) -> np.ndarray:
    reply = next(data for step, one, data in played.wire if (step, one) == (Step.MASK, client))
    data = messages.MaskedInput.decode(reply, played.session, client).words
    return np.frombuffer(data, "<u8").astype(np.uint64)


def rebuilt(played: Round, owner: int) -> bytes:
    """What the server can put together of a client's secret from the shares on the wire."""
    replies = [(client, data) for step, client, data in played.wire if step == Step.UNMASK]
    shares = {u: messages.Revealed.decode(data, played.session, u).records[owner][1:] for u, data in replies}
    return shamir.combine(shares, played.session.threshold)


def all_keys(played: Round) -> dict[int, bytes]:
    sent = [(client, data) for step, client, data in played.wire if step == Step.ADVERTISE]
    return {u: messages.Advertisement.decode(data, played.session, u).keys for u, data in sent}


@pytest.fixture(scope="module")
def recorded() -> Round:
    """A whole round with the wire recorded; client 4 drops out before its input, 3 after it."""
    of = session(words=WORDS)
    inputs = {client: np.full(WORDS, client + 1, np.uint64) for client in of.participants}
    return Round(of, inputs, {4: Step.MASK, 3: Step.CONFIRM}).play()


def test_the_test_of_uniformity_tells_updates_from_noise():
    generator = np.random.default_rng(0)
    of = session(words=WORDS)
    assert looks_uniform(generator.integers(0, 2**64, WORDS, np.uint64))
    assert not looks_uniform(of.fixed_point.pack({"x": generator.normal(size=WORDS)}))
    assert not looks_uniform(generator.integers(0, 2**63, WORDS, np.uint64))
    assert not looks_uniform(np.zeros(WORDS, np.uint64))


def test_masked_words_are_uniform_and_the_sum_is_exact(recorded):
    np.testing.assert_array_equal(recorded.server.total, np.full(WORDS, 1 + 2 + 3 + 4, np.uint64))
    for client in range(4):
        assert looks_uniform(masked(recorded, client))
    for client in range(1, 4):
        assert looks_uniform(masked(recorded, 0) - masked(recorded, client))
        assert looks_uniform(masked(recorded, 0) + masked(recorded, client))


def test_with_all_that_was_revealed_one_client_and_any_part_of_the_sum_stay_hidden(recorded):
    """Own masks and the masks with client 4 are known to the server; masks between survivors are not."""
    pairs = all_keys(recorded)
    transcript = recorded.session.transcript(pairs)
    left = {}
    for client in range(4):
        words = masked(recorded, client)
        masks.add_stream(words, masks.self_key(rebuilt(recorded, client), client, transcript), subtract=True)
        key = masks.pair_key(rebuilt(recorded, 4), 4, client, pairs, transcript)
        masks.add_pair(words, client, 4, key, undo=True)
        left[client] = words
        assert looks_uniform(words)
    np.testing.assert_array_equal(sum(left.values()), recorded.server.total)
    for together in ((0, 1), (0, 2, 3), (1, 2, 3), (2, 3)):
        assert looks_uniform(sum(left[client] for client in together))


def test_the_update_of_a_client_that_was_only_slow_stays_hidden():
    of = session(words=WORDS)
    played = Round(of, vectors(of)).play(until=Step.MASK)
    requests = played.server.requests()
    late = played.answer(4, requests[4])
    played.silent = {4: Step.MASK}
    played.play()
    with pytest.raises(MessageRefused, match="Client 4 has no part"):
        played.server.receive(4, late)
    words = np.frombuffer(messages.MaskedInput.decode(late, of, 4).words, "<u8").astype(np.uint64)
    pairs, secret = all_keys(played), rebuilt(played, 4)
    assert keys.public_key(secret) == masks.mask_half(pairs[4]), "the server does know the mask key"
    transcript = of.transcript(pairs)
    for other in range(4):
        masks.add_pair(words, 4, other, masks.pair_key(secret, 4, other, pairs, transcript), undo=True)
    assert looks_uniform(words)
    assert looks_uniform(words - played.inputs[4])


def test_no_unmasking_share_travels_in_the_open_before_the_last_step():
    of = session()
    played = Round(of, vectors(of)).play(until=Step.MASK)
    states = [json.loads(one.written()) for one in played.clients.values()]
    secrets = [
        b64decode(state[name]) for state in states for name in ("self_seed", "mask_secret", "cipher_secret")
    ]
    played.play(until=Step.UNMASK)
    wire = b"".join(data for _, _, data in played.wire)
    assert not [secret for secret in secrets if secret in wire]
    shares = [
        b64decode(share)
        for one in played.clients.values()
        for share in json.loads(one.written())["shares"].values()
    ]
    assert len(shares) == 25
    assert not [share for share in shares if share[:33] in wire or share[33:] in wire]


def survivors(played: Round, told: set[int], client: int) -> bytes:
    return messages.Survivors(dict.fromkeys(told, b"")).encode(played.session, client)


@pytest.mark.parametrize("told", [{0}, {0, 1}, {1, 2, 3}, {0, 1, 2, 3, 4, 9}])
def test_a_server_that_asks_for_one_client_alone_is_refused(told):
    of = session()
    played = Round(of, vectors(of)).play(until=Step.CONFIRM)
    with pytest.raises(MessageRefused):
        played.clients[0].confirm(survivors(played, told, 0))


def test_a_server_that_asks_for_both_shares_of_a_client_is_refused():
    of = session()
    played = Round(of, vectors(of)).play(until=Step.CONFIRM)
    everybody, without = {0, 1, 2, 3, 4}, {0, 1, 2, 3}
    signed = {}
    for client in everybody:
        reply = played.clients[client].confirm(survivors(played, everybody, client))
        signed[client] = messages.Confirmation.decode(reply, of, client).signature
    with pytest.raises(MessageRefused, match="is at 'unmask'"):
        played.clients[0].confirm(survivors(played, without, 0))
    reply = played.clients[0].unmask(messages.Confirmations(signed).encode(of, 0))
    kinds = {record[:1] for record in messages.Revealed.decode(reply, of, 0).records.values()}
    assert kinds == {messages.Revealed.SELF}
    for again in (survivors(played, without, 0), messages.Confirmations(signed).encode(of, 0)):
        for step in (played.clients[0].confirm, played.clients[0].unmask):
            with pytest.raises(MessageRefused, match="is at 'done'"):
                step(again)


def test_a_server_that_tells_clients_different_survivors_learns_no_share():
    """It tells 0, 1, 2 that client 5 dropped out, and 3, 4 that it did not: no set has four signatures."""
    of = session(range(6), threshold=4)
    played = Round(of, vectors(of)).play(until=Step.CONFIRM)
    told = {client: {0, 1, 2, 3, 4} if client < 3 else {0, 1, 2, 3, 4, 5} for client in range(6)}
    signed = {}
    for client in range(5):
        reply = played.clients[client].confirm(survivors(played, told[client], client))
        signed[client] = messages.Confirmation.decode(reply, of, client).signature
    for client in range(5):
        alike = {u: signed[u] for u in signed if told[u] == told[client]}
        with pytest.raises(MessageRefused, match="confirmations. Allowed: at least 4"):
            played.clients[client].unmask(messages.Confirmations(alike).encode(of, client))
        with pytest.raises(MessageRefused, match="The signature of client"):
            played.clients[client].unmask(messages.Confirmations(signed).encode(of, client))


def test_a_survivor_that_shared_no_keys_is_refused():
    of = session()
    played = Round(of, vectors(of), {4: Step.SHARE}).play(until=Step.CONFIRM)
    with pytest.raises(MessageRefused, match=r"5 survivors. .*not \[4\]"):
        played.clients[0].confirm(survivors(played, {0, 1, 2, 3, 4}, 0))


def test_a_confirmation_of_one_who_is_no_survivor_does_not_count():
    of = session(threshold=4)
    played = Round(of, vectors(of), {4: Step.MASK, 3: Step.CONFIRM}).play(until=Step.CONFIRM)
    signed = {}
    for client in range(3):
        reply = played.clients[client].confirm(survivors(played, {0, 1, 2, 3}, client))
        signed[client] = messages.Confirmation.decode(reply, of, client).signature
    text = of.survivors_text(all_keys(played), range(5), range(4))
    keys.check_signature(of.identities[0], signed[0], text, 0)
    signed[4] = keys.sign(identity(4), text)
    with pytest.raises(MessageRefused, match=r"4 confirmations. .*not \[4\]"):
        played.clients[0].unmask(messages.Confirmations(signed).encode(of, 0))


def test_a_signature_that_a_client_did_not_make_is_refused():
    of = session()
    played = Round(of, vectors(of)).play(until=Step.UNMASK)
    request = messages.Confirmations.decode(played.server.requests()[0], of, 0)
    forged = dict(request.records) | {2: request.records[1]}
    with pytest.raises(MessageRefused, match="signature of client 2"):
        played.clients[0].unmask(messages.Confirmations(forged).encode(of, 0))


def key_list(played: Round, changes: dict[int, bytes]) -> bytes:
    records = messages.KeyList.decode(played.server.requests()[0], played.session, 0).records
    return messages.KeyList(dict(records) | changes).encode(played.session, 0)


def test_a_server_that_puts_its_own_keys_in_a_clients_place_is_refused():
    of = session()
    played = Round(of, vectors(of)).play(until=Step.SHARE)
    own = keys.public_key(stream("a")(32)) + keys.public_key(stream("b")(32))
    signature = keys.sign(identity(99), of.advertised_text(2, own))
    with pytest.raises(MessageRefused, match="signature of client 2"):
        played.clients[0].share_keys(key_list(played, {2: own + signature}))
    with pytest.raises(MessageRefused, match="its own among them"):
        played.clients[0].share_keys(
            key_list(played, {0: own + keys.sign(identity(0), of.advertised_text(0, own))})
        )


def test_keys_that_repeat_or_give_the_secret_away_are_refused():
    of = session()
    played = Round(of, vectors(of)).play(until=Step.SHARE)
    copied = messages.KeyList.decode(played.server.requests()[0], of, 0).records[1][:64]
    signature = keys.sign(identity(2), of.advertised_text(2, copied))
    with pytest.raises(MessageRefused, match="the same key twice"):
        played.clients[0].share_keys(key_list(played, {2: copied + signature}))
    weak = bytes(32) + (1).to_bytes(32, "little")
    signature = keys.sign(identity(2), of.advertised_text(2, weak))
    with pytest.raises(MessageRefused, match="public key of client 2"):
        played.clients[0].share_keys(key_list(played, {2: weak + signature}))


def test_too_few_keys_or_shares_are_refused():
    of = session()
    played = Round(of, vectors(of)).play(until=Step.SHARE)
    records = messages.KeyList.decode(played.server.requests()[0], of, 0).records
    with pytest.raises(MessageRefused, match="keys of 2 clients. Allowed: at least 3"):
        played.clients[0].share_keys(messages.KeyList({u: records[u] for u in (0, 1)}).encode(of, 0))
    played.play(until=Step.MASK)
    inbox = messages.Inbox.decode(played.server.requests()[0], of, 0).records
    with pytest.raises(MessageRefused, match="shares of 1 others"):
        played.answer(0, messages.Inbox({1: inbox[1]}).encode(of, 0))
    with pytest.raises(MessageRefused, match="shares of client 1 were changed"):
        played.answer(0, messages.Inbox(dict(inbox) | {1: inbox[2]}).encode(of, 0))


def test_shares_of_a_client_without_keys_or_of_oneself_are_refused():
    of = session()
    played = Round(of, vectors(of), {4: Step.ADVERTISE}).play(until=Step.MASK)
    inbox = messages.Inbox.decode(played.server.requests()[0], of, 0).records
    for stranger in (0, 4):
        with pytest.raises(MessageRefused, match=rf"shares of 4 others. .*not \[{stranger}\]"):
            played.answer(0, messages.Inbox(dict(inbox) | {stranger: inbox[1]}).encode(of, 0))


def test_clients_that_collude_below_the_threshold_cannot_put_a_seed_together():
    of = session(threshold=4)
    played = Round(of, vectors(of)).play(until=Step.CONFIRM)
    states = {client: json.loads(played.clients[client].written()) for client in (0, 1, 2)}
    pairs = all_keys(played)
    promise = b64decode(json.loads(played.server.written())["masked"]["4"])
    shares = {client: b64decode(state["shares"]["4"]) for client, state in states.items()}
    for guess in (bytes(33), (1).to_bytes(33), shares[0][:33]):
        tried = {client: share[:33] for client, share in shares.items()} | {3: guess}
        assert masks.commitment(shamir.combine(tried, 4), 4, of.transcript(pairs)) != promise
