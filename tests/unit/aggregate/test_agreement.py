"""How far clients agree, how strange they are to each other, and Krum's score of that."""

from __future__ import annotations

import pytest
import torch

from fedcue.aggregate.agreement import agreement, krum, nearest, statistic, strangeness
from fedcue.types import Update


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


def test_rows_that_nobody_moved_say_nothing_of_agreement() -> None:
    start = {"head": torch.ones(3, 2)}
    moves = [[[2.0, 0], [0, 0], [0, 0]], [[5.0, 0], [0, 0], [0, 0]], [[-1.0, 0], [0, 0], [0, 0]]]
    updates = [Update(n, 1, {"head": start["head"] + torch.tensor(move)}) for n, move in enumerate(moves)]
    assert agreement(updates, start).tolist() == [[1, 1, -1], [1, 1, -1], [-1, -1, 1]]


def test_rows_are_compared_if_both_moved_them_far_or_both_a_little() -> None:
    start = {"head": torch.zeros(2, 2)}
    moves = [[[4.0, 0], [1, 0]], [[4.0, 0], [-1, 0]], [[1.0, 0], [4, 0]]]
    updates = [Update(n, 1, {"head": torch.tensor(move)}) for n, move in enumerate(moves)]
    assert agreement(updates, start).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("length", [1.0, 50.0])
def test_how_strange_a_client_is_does_not_depend_on_the_length_of_what_is_compared(length: float) -> None:
    """Of three clients two send x and one -x, which is sqrt(|2x|^2 / 2|x|^2) = sqrt(2) away."""
    rows = length * torch.tensor([[[1.0, 0]], [[1.0, 0]], [[-1.0, 0]]], dtype=torch.float64)
    holds = torch.ones(3, 1, dtype=torch.bool)
    far = 2**0.5
    assert strangeness(rows, holds, 0).tolist() == pytest.approx([far / 2, far / 2, far])
    assert strangeness(rows, holds, 1).tolist() == pytest.approx([0, 0, far]), "the farthest does not count"


def test_a_row_that_is_no_number_says_nothing_of_agreement() -> None:
    start = {"head": torch.zeros(2, 2)}
    moves = [[[4.0, 0], [4, 0]], [[4.0, 0], [float("nan"), 0]], [[4.0, 0], [float("nan"), float("nan")]]]
    updates = [Update(n, 1, {"head": torch.tensor(move)}) for n, move in enumerate(moves)]
    assert agreement(updates, start)[0].tolist() == [1, 1, 1]
    assert agreement(updates, start).tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 1]]


def test_where_liars_may_be_half_the_holders_the_mean_of_the_least_strange_stands_for_all() -> None:
    honest = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.2], [0.2, 1.0]]])
    liars = torch.tensor([[[-5.0, 1.0], [3.0, -7.0]], [[9.0, -9.0], [-9.0, 2.0]]])
    values = torch.cat([liars[:1], honest, liars[1:]])  # [n, rows, d]
    assert torch.allclose(statistic(values, 1, attackers=2), 4 * honest.double().mean(0))
