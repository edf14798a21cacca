"""Heads in closed form: of class means, after whitening, and of ridge regression."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedcue.aggregate.class_means import MomentSums, whole
from fedcue.aggregate.closed_form import (
    AHEAD,
    HIDDEN,
    SHRINKAGE,
    _beside_priors,
    _solved,
    class_means,
    covariance,
    covariance_of_means,
    head_of_means,
    prototype_head,
    ridge_head,
    scatter_of_means,
    valid,
    whitening,
)
from fedcue.aggregate.mean import Sums, sum_updates
from fedcue.errors import FedcueError
from fedcue.methods.fedcof import FedCOF
from fedcue.types import Sizes, TensorTable, Update


def drawn(images: int = 40, classes: int = 3, width: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images that spread unevenly around their class's mean, and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % classes
    spread = torch.diag(torch.tensor([5.0, 1.0, 0.5, 2.0])[:width])
    return torch.randn(images, width, generator=generator) @ spread + 3 * labels[:, None], labels


def statistics(x, labels, classes=3):
    counts = torch.bincount(labels, minlength=classes)
    means = torch.stack([x[labels == c].mean(0) if (labels == c).any() else x[0] * 0 for c in range(classes)])
    sums = MomentSums()
    sums.add(x)
    return sums.reply(), means, counts


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


def test_a_head_after_a_transform_is_that_of_transformed_vectors():
    generator = torch.Generator().manual_seed(3)
    prototypes, transform, x = (torch.randn(5, 5, generator=generator) for _ in range(3))
    known = torch.tensor([True, True, False, True, True])
    head = prototype_head(prototypes, known, 7.0, transform)
    there = prototype_head(prototypes @ transform.T, known, 7.0)
    torch.testing.assert_close(
        x @ head["head"].T + head["head_bias"],
        x @ transform.T @ there["head"].T + there["head_bias"],
        atol=1e-4,
        rtol=1e-4,
    )


def test_whitening_undoes_the_shrunk_covariance_within_classes():
    """With the degrees of freedom: images less classes. Few images, so that one more or less shows."""
    x, labels = drawn(images=9)
    moments, means, counts = statistics(x, labels)
    transform = whitening(covariance(moments, means, counts)).double().numpy()
    centred = (x - means[labels]).double().numpy()
    spread = centred.T @ centred / (9 - 3)
    shrunk = (1 - SHRINKAGE) * spread + SHRINKAGE * np.trace(spread) / 4 * np.eye(4)
    np.testing.assert_allclose(transform @ shrunk @ transform.T, np.eye(4), atol=1e-4)


def test_a_class_without_images_is_no_degree_of_freedom():
    x, labels = drawn(images=9)
    moments, means, counts = statistics(x, labels)
    padded = torch.cat([means, torch.zeros(2, 4)]), torch.cat([counts, torch.zeros(2, dtype=torch.int64)])
    one, other = whitening(covariance(moments, means, counts)), whitening(covariance(moments, *padded))
    torch.testing.assert_close(one.T @ one, other.T @ other)


def test_whitening_makes_the_spread_within_classes_even():
    x, labels = drawn(images=3000)
    moments, means, counts = statistics(x, labels)
    white = (x - means[labels]) @ whitening(covariance(moments, means, counts)).T
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
        transform = whitening(covariance(given, means, counts))
        assert torch.isfinite(transform).all()
    spread = -50.0 / (600 - 3)  # in every direction: what counts is a floor that is far above it
    floor = (SHRINKAGE * 1e-6 / 4) ** -0.5
    assert spread < 0
    assert transform.norm(dim=1).max() <= floor * 1.01


def summed(x: torch.Tensor, labels: torch.Tensor, classes: int = 3) -> Sums:
    """Return the sums of the statistics of some images, as the server has them."""
    sums, moments = Sums(TensorTable(())), MomentSums()
    moments.add(x)
    one_hot = torch.eye(classes, dtype=torch.float64)[labels]
    sums.tensors = {
        "centroids": (one_hot.T @ x.double())[None],
        "holds": one_hot.sum(0),
        "moments": moments.reply(torch.float64),
    }
    return sums


def test_class_means_of_sums_weigh_every_image_alike():
    x, labels = drawn(images=12)
    means, counts = class_means(summed(x, labels))
    torch.testing.assert_close(means, torch.stack([x[labels == c].mean(0) for c in range(3)]))
    assert counts.tolist() == [4, 4, 4]


@pytest.mark.parametrize("bias", [True, False])
def test_a_ridge_head_is_the_least_squares_of_one_hot_labels_and_a_penalty(bias):
    """The penalty is as many further images, along the axes, whose labels are zero."""
    x, labels = drawn(images=30)
    inputs = torch.cat([x, torch.ones(30, 1)], 1).double() if bias else x.double()
    width = inputs.shape[1]
    with_penalty = torch.cat([inputs, 0.7**0.5 * torch.eye(width, dtype=torch.float64)])
    targets = torch.cat([torch.eye(3, dtype=torch.float64)[labels], torch.zeros(width, 3)])
    expected = np.linalg.lstsq(with_penalty.numpy(), targets.numpy(), rcond=None)[0].T
    lengths = np.linalg.norm(expected[:, :4], axis=1)
    head = ridge_head(summed(x, labels), 0.7, bias)
    np.testing.assert_allclose(head["head"].numpy(), expected[:, :4] / lengths[:, None], atol=1e-6)
    assert set(head) == ({"head", "head_bias"} if bias else {"head"})
    if bias:
        np.testing.assert_allclose(head["head_bias"].numpy(), expected[:, 4] / lengths, atol=1e-6)


def test_a_ridge_head_of_fewer_images_than_directions_is_finite_and_right_about_them():
    x = torch.eye(4)[:2] * 50
    head = ridge_head(summed(x, torch.tensor([0, 2])), 0.01, bias=True)
    logits = x @ head["head"].T + head["head_bias"]
    assert logits.argmax(1).tolist() == [0, 2]
    assert torch.equal(logits[:, 1], torch.zeros(2))  # a class nobody holds


@pytest.mark.parametrize("bias", [True, False])
def test_however_strong_the_ridge_every_class_that_is_held_has_weights_of_length_one(bias):
    """A ridge that outweighs everything leaves the direction of the class sums."""
    x, labels = drawn(images=30)
    sums = summed(x, labels, classes=4)
    toward = sums.tensors["centroids"][0]
    head = ridge_head(sums, 1e12, bias)["head"].double()
    torch.testing.assert_close(head[:3], toward[:3] / toward[:3].norm(dim=1, keepdim=True), atol=1e-6, rtol=0)
    assert not head[3].any(), "a class nobody holds"


def lower(*variances: float) -> torch.Tensor:
    """Return the lower half of a diagonal matrix."""
    matrix = torch.diag(torch.tensor(variances, dtype=torch.float64))
    return matrix[torch.ones_like(matrix, dtype=torch.bool).tril()]


def test_variances_below_the_noise_of_moments_are_three_times_their_mean():
    """The edge, of deviation 0.5 in four directions: 0.5 x sqrt(8); the mean of what lies below is 0.4."""
    noisy, mended = lower(-0.4, 1.2, 9, 100), lower(1.2, 1.2, 9, 100)
    torch.testing.assert_close(valid(whole(noisy), 0.5), whole(mended))
    assert torch.equal(valid(whole(noisy), 0.0), whole(noisy))
    zeros, counts = torch.zeros(3, 4), torch.tensor([5, 5, 0])
    torch.testing.assert_close(covariance(noisy, zeros, counts, 0.5), covariance(mended, zeros, counts))
    sums, expected = (summed(*drawn(images=12)) for _ in range(2))
    sums.tensors["moments"], sums.deviations = noisy, {"moments": 0.5}
    expected.tensors["moments"] = mended
    found, told = (ridge_head(given, 0.1, bias=False)["head"] for given in (sums, expected))
    torch.testing.assert_close(F.normalize(found), told)


def short_vectors() -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors of length 1 that have most of it in common, as a ViT's have: 3,000 of 5 classes."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(3000) % 5
    means = 0.25 * F.normalize(torch.randn(5, 32, generator=generator), dim=1)
    common = F.normalize(torch.randn(32, generator=generator), dim=0)
    spread = torch.logspace(-1.6, -0.9, 32) * torch.randn(3000, 32, generator=generator)
    return F.normalize(common + means[labels] + spread, dim=1), labels


def with_noise(x: torch.Tensor, labels: torch.Tensor, deviation: float, seed: int) -> Sums:
    """Return sums with the noise of a trusted server: the same in sums and moments, twice of it in counts."""
    generator, sums = torch.Generator().manual_seed(seed), summed(x, labels, classes=5)
    for name, factor in (("moments", 1), ("centroids", 1), ("holds", 2)):
        noise = torch.randn(sums.tensors[name].shape, generator=generator, dtype=torch.float64)
        sums.tensors[name] = sums.tensors[name] + factor * deviation * noise
    sums.deviations = {"moments": deviation}
    return sums


@pytest.mark.parametrize(("deviation", "least"), [(0.5, 0.98), (1.0, 0.98), (2.0, 0.96)])
def test_a_noisy_ridge_head_is_steady_and_stands_beside_a_log_prior(deviation, least):
    """Twelve draws of noise: with a row for an appended 1 some fell to 92 %, and with the prior to 83 %."""
    x, labels = short_vectors()
    priors = torch.tensor([0.5, 0.44, 0.02, 0.02, 0.02])
    tested, held = labels[2000:], labels[2000:] < 2
    for seed in range(12):
        sums = with_noise(x[:2000], labels[:2000], deviation, seed)
        head = ridge_head(sums, 0.01, bias=True)
        logits = x[2000:] @ head["head"].T + head["head_bias"]
        assert (logits.argmax(1) == tested).float().mean() > least
        assert ((logits + priors.log()).argmax(1) == tested)[held].float().mean() > least


@pytest.mark.parametrize("size", [1.0, 50.0])
def test_a_noisy_ridge_head_puts_a_classs_own_mean_ahead_by_as_much_whatever_the_vectors_length(size):
    x, labels = short_vectors()
    sums = with_noise(size * x, labels, 1e-9, 0)
    sums.tensors["holds"][4] = sums.tensors["centroids"][0, 4] = 0  # a class that noise hides
    head = ridge_head(sums, 0.01, bias=True)
    logits = (sums.tensors["centroids"][0, :4] / sums.tensors["holds"][:4, None]).float() @ head["head"][:4].T
    assert (logits.diagonal() - logits.mean(1)).mean().item() == pytest.approx(AHEAD, rel=1e-4)
    assert not head["head"][4].any()
    assert not head["head_bias"].any()
    assert "head_bias" not in ridge_head(sums, 0.01, bias=False)


@pytest.mark.parametrize("bias", [True, False])
def test_a_noisy_head_of_means_has_rows_long_enough_for_a_log_prior(bias):
    x, labels = short_vectors()
    table = FedCOF().table(Sizes(classes=5, width=32, depth=2, patch=4, clients=2))
    replies = [
        Update(
            k, 9, {name: summed(x[k::2], labels[k::2], 5).tensors[name] for name in ("centroids", "holds")}
        )
        for k in range(2)
    ]
    sums = sum_updates(replies, table)
    published = head_of_means(sums, 1.0, bias)
    sums.deviations = {"centroids": 0.1, "holds": 0.1}
    head = head_of_means(sums, 1.0, bias)
    factor = head["head"].norm() / published["head"].norm()
    for name in published:
        torch.testing.assert_close(head[name], factor * published[name])
    logits = summed(x, labels, 5).tensors["centroids"][0].float() / 600 @ head["head"].T + head.get(
        "head_bias", 0
    )
    assert (logits.diagonal() - logits.mean(1)).mean().item() == pytest.approx(AHEAD, rel=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_head_of_means_is_that_of_the_published_formula(parts, bias):
    """FedCOF written down with loops: classes of no to three holders, sums of one or two parts of a client.

    Of class 3 there is one image, of class 4 none.
    """
    counts, shrinkage = np.array([[3, 4, 0, 1, 0], [2, 1, 0, 0, 0], [5, 0, 6, 0, 0]]), 0.3
    means = np.random.default_rng(0).normal(size=(parts, 3, 5, 4)) + 2
    numbers = np.stack([(counts + parts - 1 - part) // parts for part in range(parts)])
    sums = means * numbers[..., None]
    total, known = sums.sum((0, 1)), counts.sum(0)
    gram = known.sum() * np.outer(total.sum(0) / known.sum(), total.sum(0) / known.sum())
    for c in range(4):
        own = [(numbers[p, k, c], means[p, k, c]) for p in range(parts) for k in range(3) if numbers[p, k, c]]
        centre = total[c] / known[c]
        if len(own) > 1:
            spread = sum(n * np.outer(mean - centre, mean - centre) for n, mean in own) / (len(own) - 1)
            gram += (known[c] - 1) * spread
        gram += (known[c] - 1) * shrinkage * np.eye(4)
    if bias:
        everything = total.sum(0)[:, None]
        gram = np.block([[gram, everything], [everything.T, np.array([[known.sum()]])]])
        total = np.hstack([total, known[:, None]])
    expected = total @ np.linalg.inv(gram)
    expected[:4] /= np.linalg.norm(expected[:4, :4], axis=1, keepdims=True)
    replies = [
        Update(k, 9, {"centroids": torch.tensor(sums[:, k]), "holds": torch.tensor(counts[k])})
        for k in range(3)
    ]
    table = FedCOF(parts=parts).table(Sizes(classes=5, width=4, depth=2, patch=4, clients=3))
    head = head_of_means(sum_updates(replies, table), shrinkage, bias)
    np.testing.assert_allclose(head["head"].numpy(), expected[:, :4], atol=1e-6)
    assert set(head) == ({"head", "head_bias"} if bias else {"head"})
    if bias:
        np.testing.assert_allclose(head["head_bias"].numpy(), expected[:, 4], atol=1e-6)


def test_a_class_of_several_holders_that_noise_leaves_less_than_one_image_says_nothing_of_the_spread():
    """Two clients hold four classes, of which the noisy sum says 1.5, 0.5, none and less: only the first counts.

    Its mean is 3 / 1.5 = 2, the clients' own are 1 and 4: 0.5 (1 x 1 + 1 x 4) / (2 - 1).
    """
    sums = Sums(TensorTable(()))
    for mean in (1.0, 4.0):
        own = {"centroids": torch.full((1, 4, 1), mean), "holds": torch.ones(4), "classes": torch.arange(4)}
        sums.each.append(Update(0, 4, own))
    totals = torch.tensor([3.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    sums.tensors = {"centroids": totals[None, :, None], "holds": torch.tensor([1.5, 0.5, 0, -0.5]).double()}
    scatter, freedom = scatter_of_means(sums)
    assert scatter.tolist() == [[2.5]]
    assert freedom.item() == 0.5


@pytest.mark.parametrize(("counted", "freedom"), [(2.5, 1.5), (1.5, 1.0)])
def test_a_covariance_of_means_is_their_scatter_by_its_degrees_of_freedom_or_by_one(counted, freedom):
    sums = Sums(TensorTable(()))
    for mean in (1.0, 4.0):
        own = {"centroids": torch.full((1, 1, 1), mean), "holds": torch.ones(1), "classes": torch.arange(1)}
        sums.each.append(Update(0, 1, own))
    sums.tensors = {"centroids": torch.zeros(1, 1, 1).double(), "holds": torch.tensor([counted]).double()}
    scatter = (counted - 1) * (1 + 16)  # around a mean of 0
    assert covariance_of_means(sums).item() == pytest.approx(scatter / freedom)


def test_a_class_of_one_holder_says_nothing_of_the_spread():
    sums = Sums(TensorTable(()))
    for classes, mean in (([0, 1], 1.0), ([0], 4.0)):
        own = torch.full((1, len(classes), 1), 2 * mean)
        tensors = {
            "centroids": own,
            "holds": torch.full((len(classes),), 2),
            "classes": torch.tensor(classes),
        }
        sums.each.append(Update(0, 4, tensors))
    sums.tensors = {
        "centroids": torch.tensor([[[10.0], [2.0]]]).double(),
        "holds": torch.tensor([4.0, 2.0]).double(),
    }
    scatter, freedom = scatter_of_means(sums)  # (4 - 1) (2 x 1.5^2 + 2 x 1.5^2) / (2 - 1)
    assert scatter.tolist() == [[27]]
    assert freedom.item() == 3


def test_variances_that_noise_hides_are_taken_as_equal_and_the_others_are_believed():
    """In 100 directions; the noise of a half that was sent is that of a symmetric matrix."""
    generator = torch.Generator().manual_seed(0)
    noise = whole(3.0 * torch.randn(5050, generator=generator, dtype=torch.float64))
    edge = 3.0 * math.sqrt(2 * 100)
    assert torch.linalg.eigvalsh(noise)[-1].item() == pytest.approx(edge, rel=0.1)
    truth = torch.diag(torch.cat([torch.full((5,), 50 * edge), torch.full((95,), 0.3 * edge)])).double()
    found = torch.linalg.eigvalsh(valid(truth + noise, 3.0))
    hidden = found[found < edge]
    assert len(hidden) > 60
    torch.testing.assert_close(hidden, hidden.mean().expand_as(hidden))
    assert 0.1 * HIDDEN * edge < hidden[0] < 0.3 * HIDDEN * edge
    torch.testing.assert_close(found[-5:], truth.diagonal()[:5], rtol=0.05, atol=0)
    assert torch.linalg.eigvalsh(valid(noise, 3.0)).min() > 0
    assert torch.equal(valid(truth, 0.0), truth)


def test_without_any_class_there_is_no_head():
    sums = Sums(TensorTable(()))
    sums.tensors = {"centroids": torch.zeros(1, 3, 4).double(), "holds": torch.zeros(3).double()}
    sums.tensors["moments"] = torch.zeros(10).double()
    with pytest.raises(FedcueError, match="No class is known of any client"):
        class_means(sums)
    with pytest.raises(FedcueError, match="No class is known of any client"):
        ridge_head(sums, 0.01, bias=True)
    with pytest.raises(FedcueError, match="No class is known of any client"):
        head_of_means(sums, 0.1, bias=True)


@pytest.mark.parametrize("bias", [True, False])
def test_moments_that_swallow_the_ridge_still_give_a_head(bias):
    """All ones times 2^62: beside it everything else is lost in rounding, and the matrix is singular."""
    sums = summed(*drawn())
    sums.tensors["moments"] = torch.full_like(sums.tensors["moments"], 2.0**62) * 2.0**0.5
    sums.tensors["moments"][[0, 2, 5, 9]] = 2.0**62  # the diagonal of the lower half
    head = ridge_head(sums, 0.01, bias)
    assert all(tensor.isfinite().all() for tensor in head.values())
    assert head["head"].norm(dim=1) == pytest.approx(torch.ones(3), abs=1e-6)


def test_with_one_image_of_each_class_nothing_is_known_of_their_spread():
    moments, means, counts = statistics(torch.randn(3, 4), torch.arange(3))
    spread = covariance(moments, means, counts)
    torch.testing.assert_close(spread, torch.zeros_like(spread), atol=1e-5, rtol=0)


def test_a_variance_at_the_edge_of_the_noise_is_hidden_and_one_above_it_is_not():
    """In two directions the edge is twice the deviation."""
    for variance, seen in ((2.0, 6.0), (2.1, 2.1)):
        found = valid(torch.diag(torch.tensor([variance, 10.0], dtype=torch.float64)), 1.0)
        torch.testing.assert_close(found.diagonal(), torch.tensor([seen, 10.0], dtype=torch.float64))


def solved(gram: list[list[float]], wanted: list[float]) -> list[float]:
    doubles = torch.tensor(gram, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64)[:, None]
    return _solved(*doubles)[:, 0].tolist()


def test_where_the_solver_finds_no_finite_numbers_the_pseudo_inverse_does() -> None:
    """The solution would be 0.5 and 1e500."""
    assert solved([[2.0, 0.0], [0.0, 1e-300]], [1.0, 1e200]) == [0.5, 0]


def test_a_solution_of_finite_numbers_is_taken_though_the_pseudo_inverse_would_drop_a_direction() -> None:
    assert solved([[2.0, 0.0], [0.0, 2.0**-80]], [1.0, 1.0]) == [0.5, 2.0**80]


def test_of_the_solutions_of_a_singular_matrix_the_shortest_is_taken() -> None:
    assert solved([[1.0, 1.0], [1.0, 1.0]], [2.0, 2.0]) == pytest.approx([1, 1])


def test_logits_that_are_not_ahead_at_all_are_put_ahead_by_a_finite_factor() -> None:
    head = {"head": torch.ones(2, 1)}
    found = _beside_priors(head, torch.tensor([[1.0], [1.0]]).double(), torch.ones(2).double())
    assert found["head"].flatten().tolist() == [pytest.approx(10 / 1e-6)] * 2


def test_variances_that_noise_leaves_at_nothing_are_a_twentieth_of_the_edge() -> None:
    """In two directions the edge of deviation 1 is 2; three times 0.1 is taken, and all of what is hidden."""
    found = valid(torch.diag(torch.tensor([-4.0, 10.0], dtype=torch.float64)), 1.0)
    torch.testing.assert_close(found.diagonal(), torch.tensor([0.3, 10.0], dtype=torch.float64))
    nothing_hidden = torch.diag(torch.tensor([7.0, 10.0], dtype=torch.float64))
    torch.testing.assert_close(valid(nothing_hidden, 1.0), nothing_hidden)


def test_whitening_takes_a_tenth_of_the_spread_as_equal_in_all_directions() -> None:
    """Of variances 4 and 1, whose mean is 2.5: 3.85 and 1.15."""
    transform = whitening(torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64)))
    torch.testing.assert_close(transform.T @ transform, torch.diag(torch.tensor([1 / 3.85, 1 / 1.15])))


def test_a_spread_of_nothing_is_taken_as_a_millionth_in_all() -> None:
    transform = whitening(torch.zeros(4, 4, dtype=torch.float64))
    torch.testing.assert_close(transform.T @ transform, torch.eye(4) / (0.1 * 1e-6 / 4))


def test_two_images_of_one_class_are_one_degree_of_freedom() -> None:
    moments, means, counts = statistics(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0]))
    assert covariance(moments, means, counts).tolist() == [[pytest.approx(2), 0], [0, 0]]


def test_a_class_of_one_image_takes_one_degree_of_freedom() -> None:
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0], [7.0, 7.0]])
    moments, means, counts = statistics(x, torch.tensor([0, 0, 0, 1]))
    torch.testing.assert_close(
        covariance(moments, means, counts), torch.diag(torch.tensor([4.0, 0.0])).double(), atol=1e-5, rtol=0
    )


def test_short_prototypes_have_logits_of_the_same_scale_and_a_lone_one_none() -> None:
    rows = 1e-3 * torch.eye(2)
    head = prototype_head(rows, torch.ones(2, dtype=torch.bool), 6.0)
    assert (rows @ head["head"].T + head["head_bias"]).tolist() == [
        pytest.approx([6, -6], rel=1e-5),
        pytest.approx([-6, 6], rel=1e-5),
    ]
    lone = prototype_head(rows[:1], torch.ones(1, dtype=torch.bool), 6.0)
    assert lone["head"].tolist() == [[0, 0]]
    assert lone["head_bias"].tolist() == [0]


def test_a_class_mean_of_one_image_is_the_image_and_of_none_zero() -> None:
    means, counts = class_means(summed(torch.tensor([[3.0, 1.0]]), torch.tensor([1]), classes=2))
    assert means.tolist() == [[0, 0], [3, 1]]
    assert counts.tolist() == [0, 1]


def test_class_sums_in_parts_are_added_up_for_means_and_for_the_regression() -> None:
    x, labels = drawn(images=12)
    whole_sums, parts = summed(x, labels), summed(x, labels)
    parts.tensors["centroids"] = torch.cat(
        [summed(x[i::2], labels[i::2]).tensors["centroids"] for i in (0, 1)]
    )
    torch.testing.assert_close(class_means(parts)[0], class_means(whole_sums)[0])
    torch.testing.assert_close(ridge_head(parts, 0.1, True), ridge_head(whole_sums, 0.1, True))


def test_a_class_with_one_image_counts_where_rows_are_made_for_a_prior_and_one_without_does_not() -> None:
    head = {"head": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])}
    sums = torch.tensor([[4.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    counts = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)  # class means (2, 0) and (0, 1)
    # own logits 2 and 1, mean logits 1 and 0.5: ahead by 1 and 0.5, by 0.75 on average
    assert torch.allclose(_beside_priors(head, sums, counts)["head"], head["head"] * 10 / 0.75)
