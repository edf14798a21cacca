"""Class means: sums at the client; at the server a head made of them, and a covariance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcue.aggregate.class_means import (
    SHRINKAGE,
    CentroidSums,
    head_from_sums,
    prototype_head,
    second_moments,
    whitening,
)
from fedcue.aggregate.mean import Sums
from fedcue.errors import FedcueError
from fedcue.types import TensorTable


def drawn(images: int = 40, classes: int = 3, width: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images that spread unevenly around their class's mean, and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % classes
    spread = torch.diag(torch.tensor([5.0, 1.0, 0.5, 2.0])[:width])
    return torch.randn(images, width, generator=generator) @ spread + 3 * labels[:, None], labels


def statistics(x, labels, classes=3):
    counts = torch.bincount(labels, minlength=classes)
    means = torch.stack([x[labels == c].mean(0) if (labels == c).any() else x[0] * 0 for c in range(classes)])
    return second_moments([x]), means, counts


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


def test_a_class_nobody_holds_has_the_logit_zero():
    prototypes, known = torch.randn(3, 5), torch.tensor([True, False, True])
    head = prototype_head(prototypes, known, 10.0)
    logits = torch.randn(7, 5) @ head["head"].T + head["head_bias"]
    assert torch.equal(logits[:, 1], torch.zeros(7))
    assert logits[:, [0, 2]].abs().min() > 0


def test_a_class_nobody_holds_has_no_part_in_centre_and_length():
    prototypes = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    known = torch.tensor([True, False, True, True])
    alone = prototype_head(prototypes[known], torch.ones(3, dtype=torch.bool), 10.0)
    whole = prototype_head(torch.where(known[:, None], prototypes, 77.0), known, 10.0)
    for name in alone:
        torch.testing.assert_close(whole[name][known], alone[name])


def test_rows_are_of_one_length_and_give_the_prototypes_the_logit_scale_on_average():
    prototypes = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    head = prototype_head(prototypes, torch.ones(4, dtype=torch.bool), 6.0)
    lengths = head["head"].norm(dim=1)
    torch.testing.assert_close(lengths, lengths[:1].expand(4))
    own = (prototypes @ head["head"].T + head["head_bias"]).diagonal()
    assert own.mean().item() == pytest.approx(6.0, rel=1e-5)


def test_moments_can_be_added_up_over_clients():
    x = torch.randn(10, 4, dtype=torch.float64)
    lower = torch.tril_indices(x.shape[1], x.shape[1])
    torch.testing.assert_close(second_moments([x[:3], x[3:]]), (x.T @ x).float()[lower[0], lower[1]])


def test_whitening_undoes_the_shrunk_covariance_within_classes():
    """With the degrees of freedom: images less classes. Few images, so that one more or less shows."""
    x, labels = drawn(images=9)
    moments, means, counts = statistics(x, labels)
    transform = whitening(moments, means, counts).double().numpy()
    centred = (x - means[labels]).double().numpy()
    spread = centred.T @ centred / (9 - 3)
    shrunk = (1 - SHRINKAGE) * spread + SHRINKAGE * np.trace(spread) / 4 * np.eye(4)
    np.testing.assert_allclose(transform @ shrunk @ transform.T, np.eye(4), atol=1e-4)


def test_a_class_without_images_is_no_degree_of_freedom():
    x, labels = drawn(images=9)
    moments, means, counts = statistics(x, labels)
    padded = torch.cat([means, torch.zeros(2, 4)]), torch.cat([counts, torch.zeros(2, dtype=torch.int64)])
    one, other = whitening(moments, means, counts), whitening(moments, *padded)
    torch.testing.assert_close(one.T @ one, other.T @ other)


def test_whitening_makes_the_spread_within_classes_even():
    x, labels = drawn(images=3000)
    moments, means, counts = statistics(x, labels)
    white = (x - means[labels]) @ whitening(moments, means, counts).T
    spreads, before = white.var(0), (x - means[labels]).var(0)
    assert before.max() / before.min() > 80
    assert spreads.max() / spreads.min() < 5


def test_a_variance_that_rounding_made_negative_counts_as_zero():
    """All images of a class are alike: what is left of the moments is rounding, of either sign."""
    labels = torch.arange(600) % 3
    x = (torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) * 300)[labels]
    moments, means, counts = statistics(x, labels)
    negative = moments - torch.eye(4)[tuple(torch.tril_indices(4, 4))] * 50.0
    for given in (moments, negative):
        transform = whitening(given, means, counts)
        assert torch.isfinite(transform).all()
    spread = -50.0 / (600 - 3)  # in every direction: what counts is a floor that is far above it
    floor = (SHRINKAGE * 1e-6 / 4) ** -0.5
    assert spread < 0
    assert transform.norm(dim=1).max() <= floor * 1.01


def test_a_head_of_sums_weighs_every_image_alike():
    sums = Sums(TensorTable(()))
    x, labels = drawn(images=12)
    class_sums = torch.stack([x[labels == c].sum(0) for c in range(3)])[None]
    sums.tensors = {"centroids": class_sums.double(), "holds": torch.bincount(labels).double()}
    means = torch.stack([x[labels == c].mean(0) for c in range(3)])
    found, expected = head_from_sums(sums, 5.0, whiten=False), prototype_head(means, torch.ones(3) > 0, 5.0)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])


def test_without_any_class_there_is_no_head():
    sums = Sums(TensorTable(()))
    sums.tensors = {"centroids": torch.zeros(1, 3, 4).double(), "holds": torch.zeros(3).double()}
    with pytest.raises(FedcueError, match="No class is known of any client"):
        head_from_sums(sums, 5.0, whiten=False)
