"""One message has one encoding; a table lists drawn clients once each and in order."""

from __future__ import annotations

import pytest
from secure_round import session

from fedcue.secure.messages import Confirmations, Message, Survivors
from fedcue.secure.refusals import MessageRefused

OF = session()
HEADER = 49


def confirmations(*clients: int) -> bytes:
    """Encode a table with rows in this order, whatever they are."""
    start = Confirmations({}).encode(OF, 0)[:HEADER]
    rows = b"".join(client.to_bytes(4) + bytes([client]) * 64 for client in clients)
    return start + len(clients).to_bytes(4) + rows


def test_a_message_comes_back_and_its_bytes_do_too():
    message = Confirmations({client: bytes([client]) * 64 for client in (4, 0, 2)})
    data = message.encode(OF, 0)
    assert data == confirmations(0, 2, 4)
    assert Confirmations.decode(data, OF, 0) == message
    assert Survivors.decode(Survivors({}).encode(OF, 3), OF, 3).records == {}


@pytest.mark.parametrize("clients", [(2, 0), (0, 0), (0, 2, 1)])
def test_a_table_out_of_order_or_with_repetitions_is_refused(clients):
    with pytest.raises(MessageRefused, match="once each and in order"):
        Confirmations.decode(confirmations(*clients), OF, 0)


def test_a_table_with_a_client_that_was_not_drawn_is_refused():
    with pytest.raises(MessageRefused, match="lists client 9, who was not drawn"):
        Confirmations.decode(confirmations(0, 9), OF, 0)


def test_a_table_that_claims_more_rows_than_it_has_is_refused():
    data = confirmations(0, 1)
    for count in (0, 1, 3, 2**32 - 1):
        with pytest.raises(MessageRefused, match="bytes and should have"):
            Confirmations.decode(data[:HEADER] + count.to_bytes(4) + data[HEADER + 4 :], OF, 0)


def test_kinds_are_told_apart_by_number():
    kinds = [kind.kind for kind in Message.__subclasses__()]
    assert sorted(kinds) == list(range(1, 10))
