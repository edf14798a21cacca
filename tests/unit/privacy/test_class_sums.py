"""Class sums of clipped vectors, and centroids with the paper's noise, number by number."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("cryptography")

from fedcue.privacy.class_sums import ClippedSums, PaperSums, laplace
from fedcue.privacy.stream import NoiseStream


def stream() -> NoiseStream:
    return NoiseStream.simulated(0, "test", "laplace")


@pytest.mark.parametrize(
    ("radius", "step", "short", "long"),
    [(1.0, 2**-15, [10922, -3276], [19660, 26214]), (3.0, 2**-14, [5461, -1638], [29491, 39321])],
)
def test_vectors_are_shortened_to_the_radius_and_cut_to_its_grid(radius, step, short, long):
    vectors = torch.tensor([[1 / 3, -0.1], [3.0, 4.0]])
    found = ClippedSums(2, radius).shortened(vectors)
    assert found.dtype == torch.float64
    assert (found / step).tolist() == [short, long]


def test_clipped_sums_and_counts_are_of_all_classes_by_layer():
    sums = ClippedSums(3, 1.0)
    sums.add(torch.tensor([[[0.5, 0.0], [0.0, 0.25]], [[0.5, 0.5], [0.125, 0.0]]]), torch.tensor([2, 2]))
    reply = sums.reply()
    assert reply["centroids"].shape == (2, 3, 2)
    assert reply["centroids"][:, 2].tolist() == [[1.0, 0.5], [0.125, 0.25]]
    assert not reply["centroids"][:, :2].any()
    assert reply["holds"].tolist() == [0, 0, 2]


def test_laplace_noise_stays_what_it_is():
    """The same seed draws the same noise in every version."""
    drawn = laplace(torch.tensor([[1.0, 2.0]], dtype=torch.float64), 2, stream())
    expected = [[[0.16364999116710766, -2.045353470799805], [3.5590122723912883, 3.365443204253018]]]
    torch.testing.assert_close(drawn, torch.tensor(expected, dtype=torch.float64))


def noisy(by_count: bool, labels: list[int]) -> dict[str, torch.Tensor]:
    """Return the reply of two layers of three images ``(1, 0)``, ``(3, 0)`` and ``(5, 0)``."""
    sums = PaperSums(2, 0.5, stream(), around_told=False)
    vectors = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]])
    sums.add(vectors[:, None].expand(3, 2, 2), torch.tensor(labels))
    return sums.reply(by_count, dtype=torch.float64)


def test_the_papers_noise_has_twice_the_largest_distance_by_count_and_epsilon():
    """Class 0 has the mean 2 and the distance 1, so the scale 2 * 1 / 2 / 0.5; class 1 has one image."""
    noise = laplace(torch.tensor([[2.0, 2.0], [0.0, 0.0]], dtype=torch.float64), 2, stream())
    means = torch.tensor([[2.0, 0.0], [5.0, 0.0]], dtype=torch.float64)
    found = noisy(False, [0, 0, 1])["centroids"]
    torch.testing.assert_close(found, means[None] + noise.transpose(0, 1))
    assert found[:, 1].tolist() == [[5.0, 0.0]] * 2


def test_noisy_centroids_times_counts_are_what_they_say():
    mean, total = noisy(False, [0, 0, 1]), noisy(True, [0, 0, 1])
    counts = torch.tensor([2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(total["centroids"], mean["centroids"] * counts[None, :, None])
