"""Krum's score: the sum over the n - f - 2 nearest others, and no more."""

from __future__ import annotations

import torch

from fedcue.aggregate.agreement import krum, nearest


def agreements(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_krum_looks_at_its_nearest_others_only() -> None:
    """Client 0 agrees with two others fully and with two not at all; client 1 half with all four.

    With n = 5 and one attacker two neighbours count: client 0 wins with 2.0 against 1.0. Over three or
    more neighbours client 1 would catch up: 2.0 against 2.0 of four.
    """
    table = agreements(
        [
            [1.0, 0.0, 1.0, 1.0, -1.0],
            [0.0, 1.0, 0.6, 0.6, 0.6],
            [1.0, 0.6, 1.0, -1.0, -1.0],
            [1.0, 0.6, -1.0, 1.0, -1.0],
            [-1.0, 0.6, -1.0, -1.0, 1.0],
        ]
    )
    assert krum(table, attackers=1, keep=1) == [0]
    assert krum(table, attackers=0, keep=1) == [0]
    assert krum(table, attackers=-1, keep=1) == [1], "over four neighbours the other one would win"


def test_a_client_is_not_its_own_neighbour() -> None:
    table = agreements([[9.0, 0.1, 0.1], [0.1, 1.0, 0.5], [0.1, 0.5, 1.0]])
    assert krum(table, attackers=0, keep=1) == [1]


def test_nearest_averages_each_with_itself_and_those_it_agrees_with_most() -> None:
    table = agreements([[0.0, 0.9, 0.1], [0.9, 0.0, 0.2], [0.1, 0.2, 0.0]])
    assert nearest(table, 2).tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]]
