"""FedCOF: a covariance from class means, which need not be sent of many images each."""

from __future__ import annotations

import pytest
import torch

import fedcue
from fedcue.aggregate.class_means import dealt
from fedcue.aggregate.closed_form import scatter_of_means
from fedcue.aggregate.mean import sum_updates
from fedcue.errors import ConfigError
from fedcue.methods.fed3r import Fed3R
from fedcue.methods.fedcof import FedCOF
from fedcue.rounds.transport import Wire
from fedcue.types import Sizes, Update

CIFAR100 = Sizes(classes=100, width=768, depth=12, patch=16, clients=100)
SIZES = Sizes(classes=3, width=4, depth=2, patch=4, clients=50)
LABELS = [[0, 0, 0, 0, 1, 1, 1], [1, 1, 1, 2], [1, 1, 1, 3], [0, 1]]
SPREAD = torch.tensor([[3.0, 0, 0, 0], [1, 2, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0.5]]).double()


def replies(clients: int, images: int) -> tuple[list[Update], torch.Tensor, torch.Tensor]:
    """Return replies of clients with images of two of three classes, all images and their labels."""
    generator = torch.Generator().manual_seed(0)
    found, all_images, all_labels = [], [], []
    for client in range(clients):
        labels = (torch.arange(images) % 2 + client) % 3
        x = torch.randn(images, 4, generator=generator).double() @ SPREAD.T + 5 * labels[:, None]
        one_hot = torch.eye(3, dtype=torch.float64)[labels]
        tensors = {"centroids": (one_hot.T @ x)[None].float(), "holds": one_hot.sum(0).long()}
        found.append(Update(client, images, tensors))
        all_images.append(x)
        all_labels.append(labels)
    return found, torch.cat(all_images), torch.cat(all_labels)


def test_the_covariance_is_estimated_without_a_bias():
    """Of 3,000 clients, whatever their number of images."""
    for images in (2, 7):
        sums = sum_updates(replies(3000, images)[0], FedCOF().table(SIZES))
        scatter, freedom = scatter_of_means(sums)
        torch.testing.assert_close(scatter / freedom, SPREAD @ SPREAD.T, atol=0.35, rtol=0.05)


def test_with_one_image_at_each_client_the_estimate_is_the_covariance_of_all_images():
    found, x, labels = replies(40, 1)
    scatter, freedom = scatter_of_means(sum_updates(found, FedCOF().table(SIZES)))
    means = torch.stack([x[labels == c].mean(0) for c in range(3)])
    expected = (x - means[labels]).T @ (x - means[labels])
    torch.testing.assert_close(scatter, expected, atol=1e-3, rtol=1e-5)
    assert freedom == 40 - 3


def test_a_class_that_one_client_holds_says_nothing_of_the_covariance():
    found, _, _ = replies(2, 6)  # of classes 0 and 1, and 1 and 2
    scatter, freedom = scatter_of_means(sum_updates(found, FedCOF().table(SIZES)))
    assert freedom == 6 - 1
    assert torch.linalg.matrix_rank(scatter, rtol=1e-9) == 1


def test_with_one_image_in_every_class_there_is_still_a_head():
    tensors = {"centroids": torch.eye(4)[None, :3], "holds": torch.ones(3, dtype=torch.int64)}
    state = FedCOF().start(SIZES, 0, sum_updates([Update(0, 3, tensors)], FedCOF().table(SIZES)))
    assert torch.isfinite(state.tensors["head"]).all()


def test_it_comes_close_to_ridge_regression_on_second_moments(federation):
    for method in (FedCOF(), FedCOF(head_bias=True), Fed3R()):
        run = federation(method).run(0)
        assert sum(run.accuracy(client) for client in range(4)) == 4, method  # client 3 is held out


def test_random_halves_of_each_class_are_as_good_as_twice_as_many_clients(federation):
    whole, halves = (federation(FedCOF(parts=parts), labels=LABELS).run(0) for parts in (1, 2))
    for one, two in zip(whole.replies, halves.replies, strict=True):
        torch.testing.assert_close(two.tensors["centroids"].sum(0), one.tensors["centroids"][0])
        assert torch.equal(two.tensors["holds"], one.tensors["holds"])
    found = [scatter_of_means(sum_updates(run.replies, run.tiny.host.table)) for run in (whole, halves)]
    ranks = [torch.linalg.matrix_rank(scatter, rtol=1e-6) for scatter, _ in found]
    assert [freedom for _, freedom in found] == [9 - 1, 9 - 1 + 4 - 1]  # classes 2 and 3 have one image each
    assert ranks == [2, 5 + 1]  # of class 1 three means, or six; of class 0 one, or two
    assert whole.accuracy(1) == halves.accuracy(1) == 1


def test_a_half_has_the_number_of_images_that_the_server_takes_it_to_have():
    labels = torch.tensor([2, 0, 0, 2, 2, 0, 2, 2, 1])
    for parts in (1, 2, 3, 4):
        part = dealt(labels, parts, torch.Generator().manual_seed(parts))
        for c, n in enumerate([3, 1, 5]):
            found = torch.bincount(part[labels == c], minlength=parts).tolist()
            assert found == [(n + parts - 1 - place) // parts for place in range(parts)]
    drawn = {tuple(dealt(labels, 2, torch.Generator().manual_seed(i)).tolist()) for i in range(9)}
    assert len(drawn) > 1


@pytest.mark.parametrize("parts", [1, 2])
def test_a_client_sends_what_the_publication_counts(parts):
    """``C_k d + C_k``: a mean and a number for each class it has; of halves two means."""
    config = fedcue.configure("default", ["method=fedcof", "transport=sparse"])
    table = FedCOF(parts=parts).table(CIFAR100)
    reply = {spec.name: torch.zeros(*spec.shape, dtype=spec.dtype) for spec in table if spec.replied}
    reply["holds"][:10] = 5
    wire = Wire(config, table)
    wire.first_reply(Update(0, 50, reply))
    assert wire.traffic.upload_floats == parts * 10 * 768
    assert (
        wire.traffic.upload_bytes == 4 * parts * 10 * 768 + (8 + 4) * 10
    )  # counts, and which classes they are of


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["privacy=dp"], "adds noise to sums over clients, but fedcof needs every client's centroids, holds"),
        (["aggregate=median"], "cannot protect fedcof: there is no rule for its centroids, holds"),
    ],
)
def test_what_works_on_sums_alone_is_refused_with_the_reason(settings, reason):
    config = fedcue.configure("default", ["method=fedcof", "clients_per_round=5", *settings])
    with pytest.raises(ConfigError, match=reason):
        fedcue.run(config)


def test_noise_of_the_clients_own_takes_nothing_apart(federation):
    """Counts of noise may be negative: such a class is not held, and the head stays finite."""
    pytest.importorskip("dp_accounting")
    settings = ["privacy=dp", "privacy.where=local", "privacy.noise=0.5", "privacy.max_epsilon=1e6"]
    run = federation(FedCOF(), settings=settings).run(0)
    assert any((reply.tensors["holds"] < 0).any() for reply in run.replies)
    assert torch.isfinite(run.state.tensors["head"]).all()
