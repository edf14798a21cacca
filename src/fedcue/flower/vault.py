"""A client's part in secure sums between two messages: on its own disk, readable by its owner only.

Every message has a process of its own, and Flower keeps what it hands over as long as a SuperNode lives, and
for one run of Flower's. A sum must outlive both: a server that started again asks for the next step, and a
client that forgot what it revealed could be led to reveal more. So every state is on the disk before the
reply that follows from it is sent.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcue.aggregate.secure import Secure
from fedcue.errors import ClientError, ConfigError
from fedcue.flower.certificates import write_secret
from fedcue.foreign import expanded
from fedcue.record.files import write_bytes, write_json
from fedcue.secure import keys
from fedcue.secure.client import Client
from fedcue.secure.fixed_point import Words, join
from fedcue.secure.refusals import MessageRefused
from fedcue.secure.session import Session, Step


@dataclass(frozen=True)
class Vault:
    """What the clients of one node keep for the secure sums of one run."""

    folder: Path
    """The node's memory folder."""
    run: str
    rule: Secure
    asked: tuple[int, int]
    """How many clients are asked before round 0, and in a round."""
    others: Mapping[int, bytes] | None = None
    """The public keys of all clients, if the node's owner knows them from elsewhere than the server."""

    def public_keys(self, clients: Iterable[int]) -> dict[int, str]:
        """Return the keys by which others know this node's clients; its owner finds them in a file, too."""
        own = {client: keys.identity_key(self._identity(client)).hex() for client in clients}
        write_json(self.folder / "identities.json", {str(client): key for client, key in own.items()})
        return own

    def begin(self, client: int, session: Session, moment: int, words: Mapping[str, Words]) -> bytes:
        """Take part in a sum with these words; return the client's first message.

        ``moment`` is 0 before the first round and then the round's number, as this client knows it.
        """
        self._check(session, moment)
        with self._locked(client) as folder:
            state = folder / "sum.json"
            previous = state.read_text() if state.exists() else None
            one = Client(session, client, self._identity(client), previous)
            reply = one.advertise()
            write_bytes(folder / "sum.words", join(words).astype("<u8").tobytes())
            write_bytes(state, one.written().encode())
            return reply

    def answer(self, client: int, session: Session, request: bytes) -> bytes:
        """Return the client's next message, or its last one to a server that asks for it again."""
        with self._locked(client) as folder:
            state = folder / "sum.json"
            if not state.exists():
                raise ClientError("it has no part in this sum: its state is lost")
            one = Client.resume(session, client, self._identity(client), state.read_text())
            try:
                return one.repeat(request)
            except MessageRefused:
                reply = _next(one, request, folder / "sum.words")
            write_bytes(state, one.written().encode())
            if one.step == Step.CONFIRM:
                (folder / "sum.words").unlink(missing_ok=True)
            return reply

    def _check(self, session: Session, moment: int) -> None:
        """Refuse a sum that is not as the settings say, or over other clients than the node's owner knows."""
        if session.run != self.run or session.round != moment:
            raise ClientError(f"the server began a sum of round {session.round} in round {moment}")
        needed = self.rule.needed(self.asked[moment > 0])
        if session.threshold < needed or session.fixed_point != self.rule.fixed_point:
            raise ClientError(
                f"the server asked for a sum over {session.threshold} of {len(session.identities)} clients; "
                f"the settings allow {needed} or more, and the same fixed-point numbers"
            )
        for other, key in session.identities.items() if self.others is not None else ():
            if self.others is not None and self.others.get(other) != key:
                raise ClientError(f"the key of client {other} is not the one that its owner knows")

    def _identity(self, client: int) -> bytes:
        """Return the client's secret key, which follows from the node's one secret."""
        path = self.folder / "identity.key"
        if not path.exists():
            aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            write_secret(aside, secrets.token_bytes(keys.KEY_BYTES))
            try:
                os.link(aside, path)  # whichever process is first, all have the same key
            except FileExistsError:
                pass
            finally:
                aside.unlink()
        return keys.derive(path.read_bytes(), b"fedcue identity", client.to_bytes(4))

    @contextmanager
    def _locked(self, client: int) -> Iterator[Path]:
        """Yield the client's folder, for this process alone: an earlier message may still be at work."""
        folder = self.folder / self.run / f"client-{client}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(folder / "sum.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder


def _next(one: Client, request: bytes, words: Path) -> bytes:
    if one.step == Step.MASK:
        return one.mask(request, np.frombuffer(words.read_bytes(), "<u8").astype(np.uint64))
    steps = {Step.SHARE: one.share_keys, Step.CONFIRM: one.confirm, Step.UNMASK: one.unmask}
    if one.step not in steps:
        raise MessageRefused("It has done its part in this sum.")
    return steps[one.step](request)


def read_others(path: str | None) -> dict[int, bytes] | None:
    """Return the clients' public keys that a node's owner wrote down: JSON, hexadecimal by client id."""
    if path is None:
        return None
    try:
        found = json.loads(expanded(path).read_text(encoding="utf-8"))
        return {int(client): bytes.fromhex(key) for client, key in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            'The node config names identities that cannot be read. Give a file such as {"0": "9f3c...", ...}.'
        ) from error
