"""Statistics of a client's images: class means or sums, and second moments."""

from __future__ import annotations

import pytest
import torch

from fedcue.aggregate.class_means import CentroidSums, MomentSums, dealt, whole


def test_centroids_are_means_of_the_classes_there_and_zero_elsewhere():
    sums = CentroidSums(3)
    sums.add(torch.tensor([[[1.0], [10.0]], [[3.0], [30.0]]]), torch.tensor([0, 0]))
    sums.add(torch.tensor([[[5.0], [50.0]]]), torch.tensor([2]))
    reply = sums.reply()
    assert reply["centroids"].tolist() == [[[2.0], [0.0], [5.0]], [[20.0], [0.0], [50.0]]]
    assert reply["holds"].tolist() == [True, False, True]


def test_by_count_sums_and_counts_are_sent():
    sums = CentroidSums(2)
    sums.add(torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([0, 0]))
    reply = sums.reply(by_count=True)
    assert reply["centroids"].tolist() == [[[4.0], [0.0]]]
    assert reply["holds"].tolist() == [2, 0]
    assert reply["holds"].dtype == torch.int64


def test_moments_can_be_added_up_over_clients():
    x, sums = torch.randn(10, 4, dtype=torch.float64), MomentSums()
    sums.add(x[:3])
    sums.add(x[3:])
    half = sums.reply(torch.float64)
    torch.testing.assert_close(whole(half), x.T @ x)
    torch.testing.assert_close(half.norm(), (x.T @ x).norm())  # what hides the half hides no more than that
    assert torch.equal(sums.reply(), sums.reply(torch.float64).float())


def test_what_is_off_the_diagonal_is_sent_times_the_square_root_of_two():
    sums = MomentSums()
    sums.add(torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 1.0]]))
    expected = torch.tensor([1.0, 2 * 2**0.5, 13.0, 0.0, 3 * 2**0.5, 1.0])  # row by row
    torch.testing.assert_close(sums.reply(), expected)
    assert whole(expected.double()).tolist() == [
        pytest.approx(row) for row in ([1, 2, 0], [2, 13, 3], [0, 3, 1])
    ]


def test_each_classs_images_are_dealt_out_in_turn_in_a_random_order():
    """Ninety images of three classes to four owners: the order is that of one permutation of all images."""
    labels = torch.arange(90) % 3
    labels[60:] = 2
    order = torch.randperm(90, generator=torch.Generator().manual_seed(5)).tolist()
    expected, seen = [0] * 90, [0, 0, 0]
    for image in order:
        label = int(labels[image])
        expected[image] = seen[label] % 4
        seen[label] += 1
    assert dealt(labels, 4, torch.Generator().manual_seed(5)).tolist() == expected
