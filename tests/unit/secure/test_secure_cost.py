"""The bytes that the benchmark counts are those of the protocol as it is written down."""

from __future__ import annotations

import pytest
import secure as benchmark


@pytest.mark.parametrize("clients", [3, 8])
def test_a_client_sends_its_words_and_some_bytes_for_each_other_client(clients):
    words, header, count = 50, 49, 4
    costs = benchmark.measure(clients, dropped=0, words=words)
    sealed, share = (4 + 12 + 66 + 16), (4 + 1 + 33)
    up = 5 * header + 128 + count + (clients - 1) * sealed + 32 + 8 * words + 64 + count + clients * share
    down = (
        4 * (header + count) + clients * (4 + 128) + (clients - 1) * sealed + clients * 4 + clients * (4 + 64)
    )
    assert set(costs.up.values()) == {up}
    assert set(costs.down.values()) == {down}


def test_a_client_that_drops_out_sends_no_words():
    costs = benchmark.measure(4, dropped=1, words=1000)
    assert costs.up[0] < 8 * 1000 < costs.up[1]
