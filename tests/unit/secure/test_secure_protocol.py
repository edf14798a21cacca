"""The two state machines: every step once and in order, drop-outs, restarts, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from secure_round import STEPS, Round, identity, session, stream, vectors

from fedcue.secure import keys, messages
from fedcue.secure.client import Client
from fedcue.secure.fixed_point import FixedPoint
from fedcue.secure.refusals import MessageRefused, SecureSumError, SharesDoNotFit, TooFewClients
from fedcue.secure.server import Server
from fedcue.secure.session import Session, Step

OTHERS = {
    "round": {"round": 5},
    "attempt": {"attempt": 1},
    "run": {"run": "another"},
    "threshold": {"threshold": 4},
}


@pytest.fixture
def played() -> Round:
    of = session()
    return Round(of, vectors(of))


def test_the_sum_of_named_tensors_is_that_of_the_plain_sum(played):
    fixed, shapes = played.session.fixed_point, {"head": (2, 3), "bias": (2,)}
    generator = np.random.default_rng(1)
    tensors = [{name: generator.normal(size=shape) for name, shape in shapes.items()} for _ in range(5)]
    played.inputs = {client: fixed.pack(tensors[client]) for client in range(5)}
    got = fixed.unpack(played.play().server.total, shapes)
    plain = fixed.unpack(fixed.add_up(fixed.pack(one) for one in tensors), shapes)
    for name in shapes:
        np.testing.assert_array_equal(got[name], plain[name])
        np.testing.assert_allclose(got[name], sum(one[name] for one in tensors), atol=5 * 2.0**-17)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_client_may_drop_out_at_each_step(played, step):
    played.silent = {1: step, 3: step}
    played.play()
    gone = set() if step in (Step.CONFIRM, Step.UNMASK) else {1, 3}
    assert played.server.survivors == tuple(sorted({0, 1, 2, 3, 4} - gone))
    np.testing.assert_array_equal(played.server.total, played.expected())


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_with_too_few_left_the_round_fails_by_name_and_keeps_nothing(played, step):
    played.silent = dict.fromkeys((0, 2, 4), step)
    with pytest.raises(
        TooFewClients, match=f"2 clients answered step '{step}' of round 4, attempt 0, and the threshold is 3"
    ):
        played.play()  # fmt: skip
    assert played.server.step == Step.FAILED
    assert played.server.survivors == ()
    assert not played.server._total.any()
    assert not any(played.server._tables())
    for call in (played.server.advance, lambda: played.server.total):
        with pytest.raises(SecureSumError):
            call()
    with pytest.raises(MessageRefused, match="no part"):
        played.server.receive(1, b"")


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_everybody_may_be_killed_within_each_step(played, step):
    played.silent = {1: Step.MASK}
    played.play(until=step)
    requests = played.server.requests() or dict.fromkeys(range(5), b"")
    first = min(requests)
    played.server.receive(first, played.answer(first, requests.pop(first)))
    played.start_again()
    assert first not in played.server.waiting_for
    assert (played.server.requests() or requests) == requests
    for client in requests:
        if played.answers(step, client):
            played.start_again()
            played.server.receive(client, played.answer(client, requests[client]))
    played.server.advance()
    played.play()
    np.testing.assert_array_equal(played.server.total, played.expected())
    played.start_again()
    np.testing.assert_array_equal(played.server.total, played.expected())
    assert played.server.survivors == (0, 2, 3, 4)


def test_written_states_are_plain_json(played):
    played.play(until=Step.UNMASK)
    for text in (played.server.written(), played.clients[0].written()):
        state = json.loads(text)
        assert {type(value) for value in state.values()} <= {str, int, dict, list}


def test_a_server_that_lost_replies_is_sent_the_same_ones_again(played):
    played.play(until=Step.UNMASK)
    before, requests = played.server.written(), played.server.requests()
    replies = played.play_step()
    played.server = Server.resume(played.session, before)
    assert played.server.requests() == requests
    for client, request in requests.items():
        with pytest.raises(MessageRefused, match="is at 'done'"):
            played.clients[client].unmask(request)
        assert played.clients[client].repeat(request) == replies[client]
        played.server.receive(client, played.clients[client].repeat(request))
    played.server.advance()
    np.testing.assert_array_equal(played.server.total, played.expected())
    with pytest.raises(MessageRefused, match="did not answer this request"):
        played.clients[0].repeat(requests[1])


def test_a_client_forgets_its_secrets_as_soon_as_it_can(played):
    played.play(until=Step.CONFIRM)
    state = json.loads(played.clients[0].written())
    assert state["cipher_secret"] == state["mask_secret"] == state["self_seed"] == ""
    played.play()
    assert json.loads(played.clients[0].written())["shares"] == {}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_reply_is_taken_once_in_time_and_from_its_sender(played, step):
    played.play(until=step)
    requests = played.server.requests() or dict.fromkeys(range(5), b"")
    reply = played.answer(0, requests[0])
    total = played.server._total.copy()
    with pytest.raises(MessageRefused, match="of client 0 was sent as client 1's"):
        played.server.receive(1, reply)
    with pytest.raises(MessageRefused, match="Client 9 has no part"):
        played.server.receive(9, reply)
    for damaged in (reply[:-1], reply + b"\0", reply[:20], b"", b"\0" * len(reply)):
        with pytest.raises(MessageRefused):
            played.server.receive(0, damaged)
    np.testing.assert_array_equal(played.server._total, total)
    played.server.receive(0, reply)
    with pytest.raises(MessageRefused, match="answered step .* already"):
        played.server.receive(0, reply)
    for client in range(1, 5):
        played.server.receive(client, played.answer(client, requests[client]))
    played.server.advance()
    with pytest.raises(MessageRefused):
        played.server.receive(0, reply)
    np.testing.assert_array_equal(played.play().server.total, played.expected())


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_messages_of_another_session_are_refused(played, step, change):
    other = session(**change)
    foreign = Round(other, vectors(other)).play(until=step)
    played.play(until=step)
    expected = "round 5" if "round" in change else "attempt 1" if "attempt" in change else "another session"
    requests = foreign.server.requests()
    if requests:
        with pytest.raises(MessageRefused, match=expected):
            played.answer(2, requests[2])
    reply = foreign.answer(2, requests.get(2, b""))
    with pytest.raises(MessageRefused, match=expected):
        played.server.receive(2, reply)
    np.testing.assert_array_equal(played.play().server.total, played.expected())


def test_requests_out_of_order_or_for_another_client_are_refused(played):
    requests = {}
    while played.server.step != Step.DONE:
        requests[played.server.step] = played.server.requests()
        for step, sent in requests.items():
            if sent and step != played.server.step:
                with pytest.raises(MessageRefused, match="was sent where"):
                    played.answer(0, sent[0])
        if requests[played.server.step]:
            with pytest.raises(MessageRefused, match="of client 1 was sent as client 0's"):
                played.answer(0, requests[played.server.step][1])
        played.play_step()
        played.server.advance()
    np.testing.assert_array_equal(played.server.total, played.expected())


def test_a_client_does_each_step_once_and_in_order(played):
    client, key_list = played.clients[0], None
    with pytest.raises(MessageRefused, match="is at 'advertise keys', not at 'share keys'"):
        client.share_keys(b"")
    played.play(until=Step.SHARE)
    key_list = played.server.requests()[0]
    with pytest.raises(MessageRefused, match="not at 'advertise keys'"):
        client.advertise()
    client.share_keys(key_list)
    with pytest.raises(MessageRefused, match="not at 'share keys'"):
        client.share_keys(key_list)


def test_a_vector_that_does_not_fit_the_session_is_refused(played):
    played.play(until=Step.MASK)
    inbox = played.server.requests()[0]
    for words in (np.zeros(7, np.uint64), np.zeros(8, np.int64), np.zeros((2, 4), np.uint64)):
        with pytest.raises(SecureSumError, match="8 words of uint64"):
            played.clients[0].mask(inbox, words)


@pytest.mark.parametrize("owner", [1, 4], ids=["self mask", "mask key of one who dropped out"])
def test_a_wrong_share_is_noticed_and_named(played, owner):
    played.silent = {4: Step.MASK}
    played.play(until=Step.UNMASK)
    for client, request in played.server.requests().items():
        reply = played.answer(client, request)
        if client == 0:
            records = dict(messages.Revealed.decode(reply, played.session, 0).records)
            records[owner] = records[owner][:-1] + bytes([records[owner][-1] ^ 1])
            reply = messages.Revealed(records).encode(played.session, 0)
        played.server.receive(client, reply)
    with pytest.raises(SharesDoNotFit, match=f"client {owner}'s secret"):
        played.server.advance()
    assert played.server.step == Step.FAILED
    assert not played.server._total.any()


def test_shares_for_others_than_were_asked_are_refused(played):
    played.play(until=Step.SHARE)
    reply = played.answer(0, played.server.requests()[0])
    records = dict(messages.SealedShares.decode(reply, played.session, 0).records)
    del records[2]
    with pytest.raises(MessageRefused, match="Client 0 did not seal"):
        played.server.receive(0, messages.SealedShares(records).encode(played.session, 0))


def test_the_server_refuses_signatures_that_a_client_did_not_make(played):
    of = played.session
    sent = messages.Advertisement.decode(played.clients[0].advertise(), of, 0)
    forged = keys.sign(identity(1), of.advertised_text(0, sent.keys))
    with pytest.raises(MessageRefused, match="signature of client 0"):
        played.server.receive(0, messages.Advertisement(sent.keys, forged).encode(of, 0))
    played.server.receive(0, messages.Advertisement(sent.keys, sent.signature).encode(of, 0))
    for client in range(1, 5):
        played.server.receive(client, played.clients[client].advertise())
    played.server.advance()
    played.play(until=Step.CONFIRM)
    with pytest.raises(MessageRefused, match="signature of client 2"):
        played.server.receive(2, messages.Confirmation(forged).encode(of, 2))


def test_the_server_refuses_other_shares_than_it_asked_for(played):
    of = played.session
    played.play(until=Step.UNMASK)
    records = dict(messages.Revealed.decode(played.answer(0, played.server.requests()[0]), of, 0).records)
    other_kind = messages.Revealed.PAIR + records[3][1:]
    fewer = {owner: record for owner, record in records.items() if owner != 3}
    for wrong in (records | {3: other_kind}, fewer):
        with pytest.raises(MessageRefused, match="Client 0 revealed other shares"):
            played.server.receive(0, messages.Revealed(wrong).encode(of, 0))


def test_a_new_attempt_follows_a_failed_one_but_not_one_that_was_unmasked(played):
    again = session(attempt=1)
    failed = played.play(until=Step.CONFIRM).clients[0].written()
    Client(again, 0, identity(0), previous=failed)
    with pytest.raises(SecureSumError, match="took part in attempt 0"):
        Client(played.session, 0, identity(0), previous=failed)
    done = played.play().clients[0].written()
    with pytest.raises(SecureSumError, match="takes no part in another"):
        Client(again, 0, identity(0), previous=done)
    Client(session(round=5), 0, identity(0), previous=done)


def test_two_attempts_have_nothing_in_common(played):
    first = played.play(until=Step.CONFIRM).wire
    of = session(attempt=1)
    second = Round(of, played.inputs).play(until=Step.CONFIRM).wire
    for (step, client, one), (_, _, other) in zip(first, second, strict=True):
        assert one[53:] != other[53:], (step, client)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"session": 3}', "\x80", '{"step": "done"}', "[" * 99999]
)
def test_a_damaged_state_is_refused(played, text):
    with pytest.raises(SecureSumError, match="no ClientState"):
        Client.resume(played.session, 0, identity(0), text)
    with pytest.raises(SecureSumError, match="no ServerState"):
        Server.resume(played.session, text)


@pytest.mark.parametrize("field", ["session", "shares", "round", "step", "survivors"])
def test_a_state_with_a_field_of_another_type_is_refused(played, field):
    state = json.loads(played.clients[0].written())
    for value in (None, 1.5, ["x"], {"a": "b"}, "ä"):
        with pytest.raises(SecureSumError, match="no ClientState"):
            Client.resume(played.session, 0, identity(0), json.dumps(state | {field: value}))


def test_a_state_of_another_session_or_client_is_refused(played):
    with pytest.raises(SecureSumError, match="not of round 5"):
        Client.resume(session(round=5), 0, identity(0), played.clients[0].written())
    with pytest.raises(SecureSumError, match="client 0"):
        Client.resume(played.session, 1, identity(1), played.clients[0].written())
    with pytest.raises(SecureSumError, match="another session"):
        Server.resume(session(round=5), played.server.written())


def test_a_stranger_takes_no_part(played):
    with pytest.raises(SecureSumError, match="Client 9 was not drawn"):
        Client(played.session, 9, identity(9))
    with pytest.raises(SecureSumError, match="Client 0 was not drawn .* under this identity"):
        Client(played.session, 0, identity(1))


@pytest.mark.parametrize("threshold", [0, 1, 2, 6])
def test_a_threshold_of_half_or_less_or_of_more_than_all_is_refused(threshold):
    with pytest.raises(SecureSumError, match="Allowed: 3 to 5"):
        session(threshold=threshold)
    with pytest.raises(SecureSumError, match="Allowed: 3 to 4"):
        session(range(4), threshold=2)


def test_sessions_that_make_no_sense_are_refused():
    of = session()
    same = dict.fromkeys(range(3), of.identities[0])
    cases = {
        "among at least 2": {"identities": {0: of.identities[0]}, "threshold": 1},
        "of its own": {"identities": same},
        "32 bytes": {"identities": dict(of.identities) | {0: b"short"}},
        "words is 0": {"words": 0},
        "round is -1": {"round": -1},
        "attempt is 4294967296": {"attempt": 2**32},
        "client id -1": {"identities": dict(of.identities) | {-1: keys.identity_key(stream()(32))}},
        "may not fit 64 bits": {"fixed_point": FixedPoint(0, 2.0**53), "identities": {
            client: client.to_bytes(32) for client in range(1024)}, "threshold": 600},
    }  # fmt: skip
    for message, change in cases.items():
        with pytest.raises(SecureSumError, match=message):
            replace(of, **change)


def test_every_part_of_a_session_is_in_its_digest():
    of = session()
    changes = [
        {"run": "other"}, {"round": 5}, {"attempt": 1}, {"threshold": 4}, {"words": 9},
        {"fixed_point": FixedPoint(17, 1000.0)}, {"fixed_point": FixedPoint(16, 999.0)},
        {"identities": {client: of.identities[client] for client in range(1, 5)}},
        {"identities": dict(of.identities) | {0: keys.identity_key(identity(9))}},
    ]  # fmt: skip
    digests = {replace(of, **change).digest for change in changes} | {of.digest}
    assert len(digests) == len(changes) + 1
    assert (
        Session(of.run, 4, 0, dict(reversed(of.identities.items())), 3, 8, FixedPoint(16, 1000.0)).digest
        == of.digest
    )


def test_signatures_are_under_all_that_they_vouch_for():
    of, pairs = session(), {client: bytes([client]) * 64 for client in range(5)}
    other = session(attempt=1)
    keys_signed = {
        of.advertised_text(0, pairs[0]), of.advertised_text(1, pairs[0]), of.advertised_text(0, pairs[1]),
        other.advertised_text(0, pairs[0]),
    }  # fmt: skip
    assert len(keys_signed) == 4
    survivors_signed = {
        of.survivors_text(pairs, range(5), range(4)), of.survivors_text(pairs, range(4), range(4)),
        of.survivors_text(pairs, range(5), range(3)), other.survivors_text(pairs, range(5), range(4)),
        of.survivors_text(pairs | {4: bytes(64)}, range(5), range(4)),
    }  # fmt: skip
    assert len(survivors_signed) == 5


@pytest.mark.parametrize("kind", ["the same twice", "another's keys", "of small order"])
def test_a_client_with_keys_that_others_would_refuse_is_left_out_alone(kind: str) -> None:
    """Others notice such keys too, and none of them would go on."""
    of, pair = session(), stream("a")(64)
    played = Round(of, vectors(of))
    replies = {client: played.clients[client].advertise() for client in range(4)}
    for client, reply in replies.items():
        played.server.receive(client, reply)
    wrong = {
        "the same twice": 2 * pair[:32],
        "another's keys": messages.Advertisement.decode(replies[0], of, 0).keys,
        "of small order": pair[:32] + bytes(32),
    }[kind]
    signature = keys.sign(identity(4), of.advertised_text(4, wrong))
    with pytest.raises(MessageRefused, match=r"[Cc]lient 4 "):
        played.server.receive(4, messages.Advertisement(wrong, signature).encode(of, 4))
    played.server.advance()
    played.play()
    assert played.server.survivors == (0, 1, 2, 3)
    assert np.array_equal(played.server.total, played.expected())
