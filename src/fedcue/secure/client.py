"""A client's half of secure summation: five steps, each done once and in order.

Whoever drives a client saves ``written()`` after every step and *before* the reply is sent: a client
that started again from an older state could be led to mask two vectors alike.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedcue.secure import keys, masks, messages, saved, shamir
from fedcue.secure.fixed_point import Words
from fedcue.secure.refusals import MessageRefused, SecureSumError
from fedcue.secure.session import Session, Step
from fedcue.secure.shamir import SHARE_BYTES, Random


@dataclass
class ClientState:
    """What a client keeps between two messages; it holds secrets and stays on the client's machine."""

    session: bytes
    run: str
    round: int
    attempt: int
    client: int
    step: Step
    cipher_secret: bytes
    mask_secret: bytes
    self_seed: bytes
    keys: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    request: bytes = b""
    reply: bytes = b""


class Client:
    """One client in one session; ``previous`` is its state of an earlier attempt, if it had one."""

    def __init__(
        self,
        session: Session,
        client: int,
        identity: bytes,
        previous: str | None = None,
        random: Random = secrets.token_bytes,
    ) -> None:
        if session.identities.get(client) != keys.identity_key(identity):
            raise SecureSumError(f"Client {client} was not drawn in {session.label} under this identity.")
        if previous is not None:
            _check_later(saved.read(ClientState, previous), session, client)
        self.session, self.client, self._identity, self._random = session, client, identity, random
        origin = (session.digest, session.run, session.round, session.attempt, client)
        self._state = ClientState(*origin, Step.ADVERTISE, random(32), random(32), random(32))

    @classmethod
    def resume(cls, session: Session, client: int, identity: bytes, text: str) -> Self:
        """Return the client that was written down, to go on in the same session."""
        state = saved.read(ClientState, text)
        if (state.session, state.client) != (session.digest, client):
            raise SecureSumError(f"This state of client {state.client} is not of {session.label}.")
        resumed = cls(session, client, identity)
        resumed._state = state
        return resumed

    def written(self) -> str:
        """Return everything the client needs to go on, as JSON; it holds secrets."""
        return saved.written(self._state)

    @property
    def step(self) -> Step:
        """Return what the client does next."""
        return self._state.step

    def advertise(self) -> bytes:
        """Return the client's public keys, signed."""
        self._expect(Step.ADVERTISE)
        pair = self._pair()
        signature = keys.sign(self._identity, self.session.advertised_text(self.client, pair))
        return self._reply(Step.SHARE, b"", messages.Advertisement(pair, signature))

    def share_keys(self, request: bytes) -> bytes:
        """Take everybody's keys; return shares of the client's two secrets, sealed for each other one."""
        self._expect(Step.SHARE)
        pairs = self._checked_keys(messages.KeyList.decode(request, self.session, self.client))
        state, threshold = self._state, self.session.threshold
        seeds = shamir.split(state.self_seed, threshold, pairs, self._random)
        mask_keys = shamir.split(state.mask_secret, threshold, pairs, self._random)
        transcript = self.session.transcript(pairs)
        sealed = {}
        for other in pairs.keys() - {self.client}:
            key = masks.seal_key(state.cipher_secret, (self.client, other), other, pairs, transcript)
            sealed[other] = keys.seal(
                key, self._random(keys.NONCE_BYTES), seeds[other] + mask_keys[other], transcript
            )
        state.keys, state.shares = pairs, {self.client: seeds[self.client] + mask_keys[self.client]}
        return self._reply(Step.MASK, request, messages.SealedShares(sealed))

    def mask(self, request: bytes, words: Words) -> bytes:
        """Take the others' shares; return the client's vector under its masks."""
        self._expect(Step.MASK)
        if words.dtype != np.uint64 or words.shape != (self.session.words,):
            raise SecureSumError(
                f"Client {self.client} was given a vector of {words.shape} {words.dtype}. Allowed: "
                f"{self.session.words} words of uint64, as FixedPoint.pack makes them."
            )
        shares = self._opened(messages.Inbox.decode(request, self.session, self.client))
        state, transcript = self._state, self.session.transcript(self._state.keys)
        hidden = words.copy()
        masks.add_stream(hidden, masks.self_key(state.self_seed, self.client, transcript))
        for other in shares:
            key = masks.pair_key(state.mask_secret, self.client, other, state.keys, transcript)
            masks.add_pair(hidden, self.client, other, key)
        promise = masks.commitment(state.self_seed, self.client, transcript)
        state.shares |= shares
        state.cipher_secret = state.mask_secret = state.self_seed = b""
        reply = messages.MaskedInput(promise, hidden.astype("<u8").tobytes())
        return self._reply(Step.CONFIRM, request, reply)

    def confirm(self, request: bytes) -> bytes:
        """Take the list of survivors; return a signature under it, the only one this client ever gives."""
        self._expect(Step.CONFIRM)
        survivors = messages.Survivors.decode(request, self.session, self.client).records
        strangers = sorted(survivors.keys() - self._state.shares.keys())
        if strangers or self.client not in survivors or len(survivors) < self.session.threshold:
            raise MessageRefused(
                f"Client {self.client} got a list of {len(survivors)} survivors. Allowed: at least "
                f"{self.session.threshold}, itself among them, all with shared keys (not {strangers})."
            )
        self._state.survivors = tuple(survivors)
        signature = keys.sign(self._identity, self._survivors_text())
        return self._reply(Step.UNMASK, request, messages.Confirmation(signature))

    def unmask(self, request: bytes) -> bytes:
        """Take the others' signatures; return one share for each client, never both of one."""
        self._expect(Step.UNMASK)
        signatures = messages.Confirmations.decode(request, self.session, self.client).records
        outside = sorted(signatures.keys() - set(self._state.survivors))
        if outside or len(signatures) < self.session.threshold:
            raise MessageRefused(
                f"Client {self.client} was shown {len(signatures)} confirmations. Allowed: at least "
                f"{self.session.threshold}, of survivors only (not {outside})."
            )
        for other, signature in signatures.items():
            keys.check_signature(self.session.identities[other], signature, self._survivors_text(), other)
        revealed = messages.Revealed({other: self._share_to_reveal(other) for other in self._state.shares})
        self._state.shares = {}
        return self._reply(Step.DONE, request, revealed)

    def repeat(self, request: bytes) -> bytes:
        """Return the last reply once more, to the request it answered (a server may have started again)."""
        if not self._state.request or hashlib.sha256(request).digest() != self._state.request:
            raise MessageRefused(f"Client {self.client} did not answer this request last.")
        return self._state.reply

    def _pair(self) -> bytes:
        return keys.public_key(self._state.cipher_secret) + keys.public_key(self._state.mask_secret)

    def _expect(self, step: Step) -> None:
        if self.step != step:
            raise MessageRefused(f"Client {self.client} is at {self.step.value!r}, not at {step.value!r}.")

    def _reply(self, step: Step, request: bytes, message: messages.Message) -> bytes:
        self._state.step = step
        self._state.request = hashlib.sha256(request).digest()
        self._state.reply = message.encode(self.session, self.client)
        return self._state.reply

    def _checked_keys(self, message: messages.KeyList) -> dict[int, bytes]:
        size = 2 * keys.KEY_BYTES
        pairs = {other: record[:size] for other, record in message.records.items()}
        if pairs.get(self.client) != self._pair() or len(pairs) < self.session.threshold:
            raise MessageRefused(
                f"Client {self.client} was shown the keys of {len(pairs)} clients. Allowed: at least "
                f"{self.session.threshold}, its own among them as it sent them."
            )
        if masks.repeats(pairs.values()):
            raise MessageRefused(f"Client {self.client} was shown the same key twice. Every key must be new.")
        for other, record in message.records.items():
            text = self.session.advertised_text(other, pairs[other])
            keys.check_signature(self.session.identities[other], record[size:], text, other)
        return pairs

    def _opened(self, message: messages.Inbox) -> dict[int, bytes]:
        state, transcript = self._state, self.session.transcript(self._state.keys)
        strangers = sorted(message.records.keys() - (state.keys.keys() - {self.client}))
        if strangers or len(message.records) + 1 < self.session.threshold:
            raise MessageRefused(
                f"Client {self.client} was sent shares of {len(message.records)} others. Allowed: at least "
                f"{self.session.threshold - 1}, whose keys it was shown (not {strangers})."
            )
        opened = {}
        for other, sealed in message.records.items():
            key = masks.seal_key(state.cipher_secret, (other, self.client), other, state.keys, transcript)
            opened[other] = keys.unseal(key, sealed, transcript, other)
        return opened

    def _survivors_text(self) -> bytes:
        return self.session.survivors_text(self._state.keys, self._state.shares, self._state.survivors)

    def _share_to_reveal(self, other: int) -> bytes:
        share = self._state.shares[other]
        if other in self._state.survivors:
            return messages.Revealed.SELF + share[:SHARE_BYTES]
        return messages.Revealed.PAIR + share[SHARE_BYTES:]


def _check_later(previous: ClientState, session: Session, client: int) -> None:
    """Refuse a second sum over one update: the difference of two sums would be a client's vector."""
    if (previous.run, previous.client) != (session.run, client):
        return
    if previous.round == session.round and previous.step == Step.DONE:
        raise SecureSumError(
            f"Client {client} has helped to unmask attempt {previous.attempt} of round {session.round} and "
            "takes no part in another: the difference of two sums could be one update. Draw other clients."
        )
    if (previous.round, previous.attempt) >= (session.round, session.attempt):
        raise SecureSumError(
            f"Client {client} took part in attempt {previous.attempt} of round {previous.round}. "
            "Allowed: a later attempt, or a later round."
        )
