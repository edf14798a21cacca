"""How far clients agree, how strange they are to each other, and Krum's score of that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.tables import table_of

from fedcue.aggregate.agreement import (
    agreement,
    bounded,
    by_row,
    krum,
    nearest,
    rowwise,
    statistic,
    statistics,
    strangeness,
)
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


Array = NDArray[np.float64]
"""The rules once more, with loops instead of tensors."""


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def agreement_of_two(one: list[Array], other: list[Array]) -> float:
    """Return the mean cosine of the rows, tensor by tensor, that are large for both or small for both."""
    cosines = []
    for mine, yours in zip(one, other, strict=True):
        lengths = [np.linalg.norm(rows, axis=1) for rows in (mine, yours)]
        for row, (a, b) in enumerate(zip(*lengths, strict=True)):
            both_large = (a >= lengths[0].max() / 2) == (b >= lengths[1].max() / 2)
            if a > 0 and b > 0 and both_large:
                cosines.append(mine[row] @ yours[row] / (a * b))
    return float(np.mean(cosines)) if cosines else 0.0


def test_agreement_is_the_mean_cosine_of_comparable_rows_of_all_tensors() -> None:
    """Of a head and its bias, which is one row; client 3 moved a single row, client 4 nothing."""
    heads, biases = drawn(5, 6, 3) * [[[1], [9], [2], [0.5], [4], [1]]], drawn(5, 4, seed=1)
    heads[1, 2], heads[2, 4], heads[3, :5], biases[3], heads[4], biases[4] = 0, 0, 0, 0, 0, 0
    heads[0, 3] = heads[0, 1] / 2  # exactly half the largest row is large
    start = {"head": torch.tensor(drawn(6, 3, seed=2)), "bias": torch.tensor(drawn(4, seed=3))}
    updates = [
        Update(n, 1, {"head": start["head"] + torch.tensor(head), "bias": start["bias"] + torch.tensor(bias)})
        for n, (head, bias) in enumerate(zip(heads, biases, strict=True))
    ]
    parts = [[head, bias[None]] for head, bias in zip(heads, biases, strict=True)]
    expected = [[agreement_of_two(one, other) for other in parts] for one in parts]
    np.testing.assert_allclose(agreement(updates, start).numpy(), expected, atol=1e-9)


def test_a_row_half_as_long_as_the_largest_counts_as_large_and_a_shorter_one_does_not() -> None:
    start = {"head": torch.zeros(2, 1)}
    for second, least in ((4.0, 0), (3.9, -1)):
        moves = [[[8.0], [second]], [[8.0], [8.0]], [[-8.0], [4.0]]]
        updates = [Update(n, 1, {"head": torch.tensor(move)}) for n, move in enumerate(moves)]
        found = agreement(updates, start)
        assert found[0, 1].item() == 1
        assert found[1, 2].item() == 0
        assert found[0, 2].item() == least


def test_of_clients_that_agree_alike_the_first_are_kept() -> None:
    alike = torch.ones(40, 40, dtype=torch.float64)
    assert krum(alike, attackers=1, keep=3) == [0, 1, 2]
    mixing = nearest(alike, 3)
    assert mixing[0].nonzero()[:, 0].tolist() == [0, 1, 2]
    assert mixing[30].nonzero()[:, 0].tolist() == [0, 1, 30]


def test_krums_choice_is_given_in_the_clients_order() -> None:
    table = agreements([[1.0, 0.1, 0.2, 0.3], [0.1, 1, 0.5, 0.6], [0.2, 0.5, 1, 0.9], [0.3, 0.6, 0.9, 1]])
    assert krum(table, attackers=1, keep=3) == [1, 2, 3]


def test_krum_looks_at_one_neighbour_at_least() -> None:
    """Of three clients with one attacker none is left: of the two that agree most the first is taken."""
    table = agreements([[1.0, 0.1, 0.2], [0.1, 1.0, 0.9], [0.2, 0.9, 1.0]])
    assert krum(table, attackers=1, keep=1) == [1]


def middle(values: list[float], trim: int) -> float:
    """Return the mean without so many values at either end, but of one or two at least."""
    cut = min(trim, (len(values) - 1) // 2)
    return float(np.mean(sorted(values)[cut : len(values) - cut]))


def uneven_rows() -> Array:
    """Return rows ``[8, 7, 3]`` held by 8, 7, 5, 3, 2, 1 and none of the clients."""
    rows = drawn(8, 7, 3, seed=4)
    for row, holders in enumerate((8, 7, 5, 3, 2, 1, 0)):
        absent = np.random.default_rng(row).permutation(8)[holders:]
        rows[absent, row] = 0
    rows[0, 0] = [0, 1.5, 0]  # a row is there if any of it is
    return rows


@pytest.mark.parametrize("trim", [0, 1, 2, 9])
def test_a_row_moves_by_the_trimmed_mean_of_its_holders_or_by_few_bounded_ones(trim: int) -> None:
    rows = uneven_rows()
    lengths = np.linalg.norm(rows, axis=2)
    usual = np.median(lengths[lengths > 0])
    expected = np.zeros((7, 3))
    for row in range(7):
        there = [n for n in range(8) if lengths[n, row]]
        for n in there if len(there) < 3 else ():
            expected[row] += rows[n, row] * min(1, usual / lengths[n, row])
        for column in range(3) if len(there) >= 3 else ():
            expected[row, column] = len(there) * middle([rows[n, row, column] for n in there], trim)
    np.testing.assert_allclose(rowwise(torch.tensor(rows), trim).numpy(), expected, atol=1e-12)
    stacked = torch.tensor(rows.reshape(8, 1, 7, 3))
    assert torch.equal(rowwise(stacked, trim)[0], rowwise(torch.tensor(rows), trim))


def strangeness_of(rows: Array, client: int, attackers: int) -> float:
    """Return the mean relative distance of a client from the others it shares rows with, but the farthest."""
    distances = []
    for other in set(range(len(rows))) - {client}:
        pairs = [(a, b) for a, b in zip(rows[client], rows[other], strict=True) if a.any() and b.any()]
        apart = [np.sqrt(((a - b) ** 2).sum() / (a @ a + b @ b)) for a, b in pairs]
        distances += [np.mean(apart)] if apart else []
    kept = sorted(distances)[: max(len(distances) - attackers, 1)]
    return float(np.mean(kept)) if kept else 0.0


@pytest.mark.parametrize("attackers", [0, 1, 3, 9])
def test_strangeness_is_the_mean_distance_from_the_nearest_others_in_shared_rows(attackers: int) -> None:
    """The last client shares a row with nobody, the one before it with few."""
    rows = uneven_rows()
    rows[7], rows[6, 1:], rows[5, :4] = 0, 0, 0
    holds = torch.tensor((rows != 0).any(-1))
    expected = [strangeness_of(rows, client, attackers) for client in range(8)]
    assert expected[7] == 0
    np.testing.assert_allclose(strangeness(torch.tensor(rows), holds, attackers), expected, atol=1e-9)


@pytest.mark.parametrize("attackers", [0, 1, 2, 3])
@pytest.mark.parametrize("trim", [0, 1])
def test_class_statistics_are_a_trimmed_mean_or_that_of_the_least_strange_holders(attackers, trim) -> None:
    rows = uneven_rows()
    strange = [strangeness_of(rows, client, attackers) for client in range(8)]
    expected = np.zeros((7, 3))
    for row in range(7):
        there = sorted((n for n in range(8) if rows[n, row].any()), key=lambda n: strange[n])
        trusted = rows[there[: max(len(there) - attackers, 1)], row]
        for column in range(3) if there else ():
            own = [rows[n, row, column] for n in there]
            safe = len(there) > 2 * attackers
            expected[row, column] = len(there) * (middle(own, trim) if safe else trusted[:, column].mean())
    found = statistic(torch.tensor(rows), trim, attackers)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    stacked = torch.tensor(rows[:, None])
    assert torch.equal(statistic(stacked, trim, attackers)[0], found)


def test_of_holders_that_are_as_strange_as_each_other_the_first_are_trusted() -> None:
    """Twenty of forty say 1, twenty -1: each has nineteen like itself, as many as are asked. Of the first
    twenty clients fifteen say 1."""
    said = torch.tensor(15 * [1.0] + 5 * [-1.0] + 5 * [1.0] + 15 * [-1.0])[:, None]
    assert strangeness(said[..., None].double(), torch.ones(40, 1).bool(), 20).tolist() == [0.0] * 40
    assert statistic(said, 0, attackers=20).tolist() == [40 * 0.5]


def test_changes_are_shortened_as_wholes_and_statistics_row_by_row() -> None:
    """The median length is that of all changes, moved or not; what is no number counts as very long."""
    moves, statistic_rows = drawn(5, 4, 3, seed=6) * [[[1]], [[2]], [[9]], [[4]], [[0]]], drawn(5, 1, 4, 2)
    biases = drawn(5, 4, seed=7)
    biases[4], statistic_rows[1, 0, 2] = 0, 0
    start = {"head": torch.tensor(drawn(4, 3, seed=8)), "head_bias": torch.tensor(drawn(4, seed=9))}
    updates = [
        Update(
            n,
            10,
            {
                "head": start["head"] + torch.tensor(moves[n]),
                "head_bias": start["head_bias"] + torch.tensor(biases[n]),
                "centroids": torch.tensor(statistic_rows[n]),
                "means": torch.tensor(statistic_rows[n, 0]),
                "holds": torch.full((4,), 9.0 + n),
            },
        )
        for n in range(5)
    ]
    lengths = np.sqrt((moves**2).sum((1, 2)) + (biases**2).sum(1))
    row_lengths = np.linalg.norm(statistic_rows, axis=3)[..., None]
    usual_row = np.median(row_lengths[row_lengths > 0])
    for bound, limit in (("median", np.median(lengths)), (0.5, 0.5)):
        for n, after in enumerate(bounded(updates, start, bound)):
            factor = min(1, limit / lengths[n]) if lengths[n] else 1
            rows = statistic_rows[n] * np.minimum(1, usual_row / np.maximum(row_lengths[n], 1e-300))
            expected = {
                "head": start["head"].numpy() + factor * moves[n],
                "head_bias": start["head_bias"].numpy() + factor * biases[n],
                "centroids": rows,
                "means": rows[0],
                "holds": np.full(4, 9.0 + n),
            }
            assert list(after.tensors) == list(expected)
            for name, value in expected.items():
                np.testing.assert_allclose(after.tensors[name], value, atol=1e-9, err_msg=name)


def test_a_change_that_is_partly_no_number_is_shortened_to_nothing() -> None:
    start = {"head": torch.ones(2, 2)}
    moves = [[[3.0, 0], [0, 4]], [[torch.nan, 0], [0, 1]], [[0.3, 0], [0, 0.4]]]
    updates = [Update(n, 1, {"head": 1 + torch.tensor(move)}) for n, move in enumerate(moves)]
    first, second, third = (update.tensors["head"] - 1 for update in bounded(updates, start, 1.0))
    assert torch.allclose(first, torch.tensor([[0.6, 0], [0, 0.8]]).double())
    assert torch.equal(second, torch.zeros(2, 2).double())
    assert torch.allclose(third, torch.tensor([[0.3, 0], [0, 0.4]]).double())
    # row 0 has two holders: bounded by the median row, of length 1; row 1 has three
    sums = by_row(updates, start, table_of(), 0, 1)
    assert torch.allclose(sums.tensors["head"], torch.tensor([[3 + 1.3, 3], [3, 3 + 5.4]]).double())


def test_where_most_changes_are_no_numbers_no_length_is_usual_and_numbers_stay() -> None:
    start = {"head": torch.ones(2, 2)}
    moves = [[[torch.nan, 0], [0, 4]], [[torch.nan, 0], [0, 1]], [[0.3, 0], [0, 0.4]]]
    updates = [Update(n, 1, {"head": 1 + torch.tensor(move)}) for n, move in enumerate(moves)]
    for update, move in zip(bounded(updates, start, "median"), moves, strict=True):
        assert torch.allclose(update.tensors["head"], 1 + torch.tensor(move).double().nan_to_num(nan=0.0))


def test_what_is_no_number_in_a_statistic_counts_as_not_held() -> None:
    values = [[[1.0, 2.0]], [[torch.nan, torch.nan]], [[1.0, 4.0]], [[1.0, 6.0]]]
    updates = [Update(n, 1, {"centroids": torch.tensor(value)}) for n, value in enumerate(values)]
    assert statistics(updates, {}, 1, 1)["centroids"].tolist() == [[3.0, 12.0]]
    assert not statistics(updates, {"centroids": torch.zeros(1, 2)}, 1, 1)


def test_where_nobody_moved_and_nobody_holds_anything_nothing_is_shortened() -> None:
    zeros = {"head": torch.zeros(2, 2), "centroids": torch.zeros(1, 2, 2)}
    updates = [Update(n, 1, dict(zeros)) for n in range(2)]
    for update in bounded(updates, {"head": torch.zeros(2, 2)}, "median"):
        assert not any(tensor.any() for tensor in update.tensors.values())


def test_a_bound_is_for_what_is_trained_and_class_statistics_alone_need_none() -> None:
    updates = [Update(n, 1, {"centroids": torch.full((1, 1, 2), 1.0 + 3 * n)}) for n in range(3)]
    after = [update.tensors["centroids"].flatten().tolist() for update in bounded(updates, {}, 1e-3)]
    assert after == [[1, 1], [4, 4], pytest.approx([4, 4])]
