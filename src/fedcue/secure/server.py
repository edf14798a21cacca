"""The server's half of secure summation: it collects each step's replies and learns one sum.

``requests()`` says what to send to whom, ``receive`` takes a reply, ``advance`` ends a step with those
who answered. ``written()`` between any two calls is enough to go on after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedcue.secure import keys, masks, messages, saved, shamir
from fedcue.secure.fixed_point import Words
from fedcue.secure.refusals import MessageRefused, SecureSumError, SharesDoNotFit, TooFewClients
from fedcue.secure.session import Session, Step

ORDER = (Step.ADVERTISE, Step.SHARE, Step.MASK, Step.CONFIRM, Step.UNMASK, Step.DONE)


@dataclass
class ServerState:
    """What the server keeps: one table of replies for each step, and the running sum."""

    session: bytes
    step: Step = Step.ADVERTISE
    advertised: dict[int, bytes] = field(default_factory=dict)
    shared: dict[int, bytes] = field(default_factory=dict)
    masked: dict[int, bytes] = field(default_factory=dict)
    confirmed: dict[int, bytes] = field(default_factory=dict)
    revealed: dict[int, bytes] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    total: bytes = b""


class Server:
    """The server in one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._state = ServerState(session.digest)
        self._total: Words = np.zeros(session.words, np.uint64)

    @classmethod
    def resume(cls, session: Session, text: str) -> Self:
        """Return the server that was written down, to go on in the same session."""
        state = saved.read(ServerState, text)
        if state.session != session.digest or len(state.total) != 8 * session.words:
            raise SecureSumError(
                f"The server's state is of another session than {session.label}. Put the run's own file "
                "back, or start a new run."
            )
        server = cls(session)
        server._state = state
        server._total = np.frombuffer(state.total, "<u8").astype(np.uint64)
        return server

    def written(self) -> str:
        """Return everything the server needs to go on, as JSON."""
        self._state.total = self._total.astype("<u8").tobytes()
        return saved.written(self._state)

    @property
    def step(self) -> Step:
        """Return which replies the server waits for."""
        return self._state.step

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Return the clients that may still answer the present step."""
        return tuple(sorted(self._expected() - self._replies().keys()))

    @property
    def lacking(self) -> int:
        """Return how many more answers the present step needs."""
        return max(0, self.session.threshold - len(self._replies()))

    @property
    def survivors(self) -> tuple[int, ...]:
        """Return the clients whose vectors are in the sum."""
        return self._state.survivors

    @property
    def total(self) -> Words:
        """Return the sum over the survivors; there is none before the last step."""
        if self.step != Step.DONE:
            raise SecureSumError(f"There is no sum yet in {self.session.label}, at {self.step.value!r}.")
        return self._total

    def requests(self) -> dict[int, bytes]:
        """Return what to send to each client that has not answered yet; the first step needs no request."""
        make = {Step.SHARE: self._key_lists, Step.MASK: self._inboxes, Step.CONFIRM: self._survivor_lists}
        make[Step.UNMASK] = self._confirmation_lists
        if self.step not in make:
            return {}
        waiting = set(self.waiting_for)
        return {
            client: message.encode(self.session, client)
            for client, message in make[self.step]().items()
            if client in waiting
        }

    def receive(self, client: int, data: bytes) -> None:
        """Take a client's reply; ``client`` is the sender by the transport."""
        if client not in self._expected():
            raise MessageRefused(
                f"Client {client} has no part in step {self.step.value!r} of {self.session.label}."
            )
        if client in self._replies():
            raise MessageRefused(f"Client {client} has answered step {self.step.value!r} already.")
        take = {Step.ADVERTISE: self._take_keys, Step.SHARE: self._take_shares, Step.MASK: self._take_input}
        take |= {Step.CONFIRM: self._take_signature, Step.UNMASK: self._take_revealed}
        self._replies()[client] = take[self.step](client, data)

    def advance(self) -> dict[int, bytes]:
        """End the step with those who answered; return the next requests (none after the last step)."""
        left = len(self._replies())
        if self.step in (Step.DONE, Step.FAILED):
            raise SecureSumError(f"{self.session.label} is {self.step.value}. Begin a new session.")
        if left < self.session.threshold:
            step = self.step.value
            self._forget(Step.FAILED)
            raise TooFewClients(
                f"{left} clients answered step {step!r} of {self.session.label}, and the threshold is "
                f"{self.session.threshold}. Nothing was revealed. Draw the round again as the next attempt."
            )
        if self.step == Step.MASK:
            self._state.survivors = tuple(sorted(self._state.masked))
        if self.step == Step.UNMASK:
            self._finish()
        else:
            self._state.step = ORDER[ORDER.index(self.step) + 1]
        return self.requests()

    def _tables(self) -> list[dict[int, bytes]]:
        state = self._state
        return [state.advertised, state.shared, state.masked, state.confirmed, state.revealed]

    def _replies(self) -> dict[int, bytes]:
        return {} if self.step in (Step.DONE, Step.FAILED) else self._tables()[ORDER.index(self.step)]

    def _expected(self) -> set[int]:
        if self.step in (Step.DONE, Step.FAILED):
            return set()
        place = ORDER.index(self.step)
        return set(self._tables()[place - 1] if place else self.session.identities)

    def _forget(self, step: Step) -> None:
        if step == Step.FAILED:
            self._total[:] = 0
            self._state.survivors = ()
        for table in self._tables():
            table.clear()
        self._state.step = step

    def _keys(self) -> dict[int, bytes]:
        return {one: record[: 2 * keys.KEY_BYTES] for one, record in self._state.advertised.items()}

    def _key_lists(self) -> Mapping[int, messages.Message]:
        return dict.fromkeys(self._state.advertised, messages.KeyList(self._state.advertised))

    def _inboxes(self) -> Mapping[int, messages.Message]:
        inboxes: dict[int, dict[int, bytes]] = {one: {} for one in self._state.shared}
        for sender, data in self._state.shared.items():
            sealed = messages.SealedShares.decode(data, self.session, sender).records
            for receiver in inboxes.keys() - {sender}:
                inboxes[receiver][sender] = sealed[receiver]
        return {receiver: messages.Inbox(records) for receiver, records in inboxes.items()}

    def _survivor_lists(self) -> Mapping[int, messages.Message]:
        return dict.fromkeys(self.survivors, messages.Survivors(dict.fromkeys(self.survivors, b"")))

    def _confirmation_lists(self) -> Mapping[int, messages.Message]:
        return dict.fromkeys(self._state.confirmed, messages.Confirmations(self._state.confirmed))

    def _take_keys(self, client: int, data: bytes) -> bytes:
        message = messages.Advertisement.decode(data, self.session, client)
        text = self.session.advertised_text(client, message.keys)
        keys.check_signature(self.session.identities[client], message.signature, text, client)
        self._check_usable(client, message.keys)
        return message.keys + message.signature

    def _check_usable(self, client: int, pair: bytes) -> None:
        """Refuse keys that every other client would refuse: there would be no sum at all."""
        if masks.repeats([*self._keys().values(), pair]):
            raise MessageRefused(f"Client {client} sent a key that was sent before. Every key must be new.")
        for half in (masks.cipher_half(pair), masks.mask_half(pair)):
            keys.agree(bytes(keys.KEY_BYTES), half, client)

    def _take_shares(self, client: int, data: bytes) -> bytes:
        receivers = messages.SealedShares.decode(data, self.session, client).records.keys()
        if receivers != self._state.advertised.keys() - {client}:
            raise MessageRefused(f"Client {client} did not seal shares for just those who sent keys.")
        return data

    def _take_input(self, client: int, data: bytes) -> bytes:
        message = messages.MaskedInput.decode(data, self.session, client)
        self._total += np.frombuffer(message.words, "<u8")
        return message.commitment

    def _take_signature(self, client: int, data: bytes) -> bytes:
        signature = messages.Confirmation.decode(data, self.session, client).signature
        text = self.session.survivors_text(self._keys(), self._state.shared, self.survivors)
        keys.check_signature(self.session.identities[client], signature, text, client)
        return signature

    def _take_revealed(self, client: int, data: bytes) -> bytes:
        records = messages.Revealed.decode(data, self.session, client).records
        kinds = dict.fromkeys(self._state.shared, messages.Revealed.PAIR)
        kinds |= dict.fromkeys(self.survivors, messages.Revealed.SELF)
        if {one: record[:1] for one, record in records.items()} != kinds:
            raise MessageRefused(f"Client {client} revealed other shares than were asked for.")
        return data

    def _finish(self) -> None:
        """Take away the survivors' own masks and the masks they shared with those who dropped out."""
        try:
            secrets = self._secrets()
        except SharesDoNotFit:
            self._forget(Step.FAILED)
            raise
        pairs = self._keys()
        transcript = self.session.transcript(pairs)
        for client in self.survivors:
            key = masks.self_key(secrets[client], client, transcript)
            masks.add_stream(self._total, key, subtract=True)
        for dropped in secrets.keys() - set(self.survivors):
            for client in self.survivors:
                key = masks.pair_key(secrets[dropped], dropped, client, pairs, transcript)
                masks.add_pair(self._total, client, dropped, key, undo=True)
        self._forget(Step.DONE)

    def _secrets(self) -> dict[int, bytes]:
        """Return each survivor's seed and each other's mask secret, checked against what was promised."""
        revealed = {
            holder: messages.Revealed.decode(data, self.session, holder).records
            for holder, data in self._state.revealed.items()
        }
        pairs, secrets = self._keys(), {}
        transcript = self.session.transcript(pairs)
        for owner in self._state.shared:
            shares = {holder: records[owner][1:] for holder, records in revealed.items()}
            secret = shamir.combine(shares, self.session.threshold)
            if owner in self.survivors:
                fits = masks.commitment(secret, owner, transcript) == self._state.masked[owner]
            else:
                fits = keys.public_key(secret) == masks.mask_half(pairs[owner])
            if not fits:
                raise SharesDoNotFit(
                    f"The shares of client {owner}'s secret do not fit: it, or one of those who revealed "
                    f"them, sent a wrong one. There is no sum in {self.session.label}; draw it again."
                )
            secrets[owner] = secret
        return secrets
