"""What a client keeps of secure sums on its disk, and what no server can lead it to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from fedcue.aggregate.secure import Secure
from fedcue.errors import ClientError, FedcueError
from fedcue.flower.vault import Vault
from fedcue.secure.fixed_point import Words
from fedcue.secure.refusals import MessageRefused, SecureSumError
from fedcue.secure.server import Server
from fedcue.secure.session import Session, Step

RULE, CLIENTS, LENGTH = Secure(), range(4), 6


class Round:
    """Four clients on two disks and a server; every call finds everything on disk, as a new process would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for disk in "ab":
            (folder / disk).mkdir()
        self.keys = {
            client: bytes.fromhex(self.vault(client).public_keys(CLIENTS)[client]) for client in CLIENTS
        }

    def vault(self, client: int) -> Vault:
        return Vault(self.folder / "ab"[client % 2], "run", RULE, (4, 4))

    def words(self, client: int) -> dict[str, Words]:
        return {"head": np.arange(LENGTH, dtype=np.uint64) + np.uint64(100 * client)}

    def server(self, round_: int = 1, attempt: int = 0, clients: range = CLIENTS) -> Server:
        keys = {client: self.keys[client] for client in clients}
        return Server(Session("run", round_, attempt, keys, 3, LENGTH, RULE.fixed_point))

    def begin(self, server: Server, client: int, moment: int | None = None) -> bytes:
        moment = server.session.round if moment is None else moment
        return self.vault(client).begin(client, server.session, moment, self.words(client))

    def play(self, server: Server, until: Step = Step.DONE) -> Server:
        for client in server.session.participants:
            server.receive(client, self.begin(server, client))
        requests = server.advance()
        while server.step not in (until, Step.DONE):
            for client, request in requests.items():
                server.receive(client, self.vault(client).answer(client, server.session, request))
            requests = server.advance()
        return server


@pytest.fixture
def clients(tmp_path: Path) -> Round:
    return Round(tmp_path)


def test_a_sum_is_made_of_what_lies_on_disks(clients: Round, tmp_path: Path) -> None:
    server = clients.play(clients.server())
    np.testing.assert_array_equal(server.total, np.arange(LENGTH) * 4 + 600)
    assert not list(tmp_path.rglob("sum.words")), "what was masked is no longer needed"
    assert len(set(clients.keys.values())) == 4


def test_no_second_sum_of_a_round_and_none_of_an_earlier_one(clients: Round) -> None:
    """A server that wants client 3's update asks for a sum with it and for one without it."""
    clients.play(clients.server(2))
    for again in (clients.server(2, 1, range(3)), clients.server(2, 0, range(3)), clients.server(1, 7)):
        for client in range(3):
            with pytest.raises(SecureSumError, match=r"takes no part in another|Allowed: a later attempt"):
                clients.begin(again, client)
    assert clients.play(clients.server(3)).step == Step.DONE


def test_an_attempt_that_was_not_unmasked_is_followed_by_another_with_new_masks(clients: Round) -> None:
    first = clients.server()
    clients.play(first, Step.CONFIRM)
    second = clients.play(clients.server(attempt=1))
    np.testing.assert_array_equal(second.total, np.arange(LENGTH) * 4 + 600)
    with pytest.raises(SecureSumError, match="is not of round 1, attempt 0"):
        clients.vault(0).answer(0, first.session, first.requests()[0])


def test_the_same_request_gets_the_same_bytes_and_another_gets_none(clients: Round) -> None:
    server = clients.server()
    for client in CLIENTS:
        server.receive(client, clients.begin(server, client))
    request = server.advance()[1]
    reply = clients.vault(1).answer(1, server.session, request)
    assert clients.vault(1).answer(1, server.session, request) == reply
    for wrong in (request[:-1], b"", server.requests()[0]):
        with pytest.raises(MessageRefused):
            clients.vault(1).answer(1, server.session, wrong)
    server.receive(1, reply)


def test_a_sum_is_as_the_settings_say_or_the_client_has_no_part_in_it(clients: Round) -> None:
    server = clients.server()
    with pytest.raises(ClientError, match="a sum of round 1 in round 5"):
        clients.begin(server, 0, moment=5)
    few = Session("run", 1, 0, {c: clients.keys[c] for c in range(3)}, 2, LENGTH, RULE.fixed_point)
    with pytest.raises(ClientError, match="a sum over 2 of 3 clients; the settings allow 3 or more"):
        clients.vault(0).begin(0, few, 1, clients.words(0))
    with pytest.raises(ClientError, match="its state is lost"):
        clients.vault(0).answer(0, server.session, b"")
    with pytest.raises(FedcueError, match="was not drawn in round 1, attempt 0 under this identity"):
        clients.vault(1).begin(0, server.session, 1, clients.words(0))


def test_secrets_are_for_the_owner_only(clients: Round, tmp_path: Path) -> None:
    clients.play(clients.server(), Step.MASK)
    for path in [*tmp_path.rglob("identity.key"), *tmp_path.rglob("client-*")]:
        assert path.stat().st_mode & 0o077 == 0
