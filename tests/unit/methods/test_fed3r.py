"""Fed3R: the head of all images in one place, whatever the clients are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import SMALL
from test_statistics_head import features_and_labels

import fedcue
from fedcue.aggregate.class_means import MomentSums
from fedcue.aggregate.mean import sum_updates
from fedcue.errors import ConfigError
from fedcue.methods.fed3r import Fed3R, projection
from fedcue.rng import torch_rng
from fedcue.rounds.transport import Wire
from fedcue.types import Sizes, Update, count_floats

CIFAR100 = Sizes(classes=100, width=768, depth=12, patch=16, clients=100)
RANDOM = Fed3R(features="random", width=40)


def ridge(x: np.ndarray, labels: np.ndarray, penalty: float) -> np.ndarray:
    """Return the weights ``[5 or more, d + 1]`` of all images in one place, rows of length 1 without bias."""
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ np.eye(4)[labels.astype(int)]).T
    return weights / np.linalg.norm(weights[:, :-1], axis=1, keepdims=True)


def test_the_head_is_the_ridge_regression_of_all_images(federation):
    tiny = federation(Fed3R(ridge=0.5))
    expected = ridge(*features_and_labels(tiny), 0.5)
    found = tiny.start().tensors
    np.testing.assert_allclose(found["head"].numpy(), expected[:, :-1], atol=1e-5)
    np.testing.assert_allclose(found["head_bias"].numpy(), expected[:, -1], atol=1e-5)
    assert set(found) == {"head", "head_bias"}


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Return the heads of whole runs in which the same 150 images lie at other clients."""
    heads = {}
    further = {"pathological": [], "dirichlet": ["partition.alpha=0.3"], "iid": ["partition.clients=7"]}
    for split, own in further.items():
        settings = [*SMALL, "method=fed3r", "heldout=0", f"partition={split}", *own]
        config = fedcue.configure("default", settings)
        result = fedcue.run(config, tmp_path_factory.mktemp(split) / "run")
        assert result.summary["rounds"] == 0
        table = [line.split(",") for line in (result.folder / "clients.csv").read_text().splitlines()]
        assert sum(int(row[table[0].index("train_size")]) for row in table[1:]) == 150
        heads[split] = fedcue.load(result.folder).state.tensors
    return heads


@pytest.mark.parametrize("split", ["dirichlet", "iid"])
def test_the_head_does_not_depend_on_who_has_which_images(heads, split):
    for name, tensor in heads["pathological"].items():
        torch.testing.assert_close(heads[split][name], tensor, atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", [Fed3R(), RANDOM], ids=["cls", "random"])
def test_replies_may_come_in_any_order_and_from_any_split_of_a_client(federation, method):
    """There are fewer images than directions, in some of which the ridge alone decides."""
    tiny = federation(method, images=8)
    table, replies = tiny.host.table, tiny.run(0).replies
    expected = tiny.method.start(tiny.sizes, 0, sum_updates(replies, table)).tensors
    parts = []
    for client in range(3):
        vectors = method.vectors(method.personal(tiny.client(client), {}), tiny.batch(client)).double()
        for own in (slice(0, 3), slice(3, 8)):
            x, labels = vectors[own], torch.eye(4, dtype=torch.float64)[tiny.batch(client).labels[own]]
            moments = MomentSums()
            moments.add(x)
            sums = {"centroids": (labels.T @ x)[None], "holds": labels.sum(0)}
            tensors = {**sums, "moments": moments.reply(torch.float64)}
            parts.append(Update(len(parts), len(x), tensors))
    for updates in (replies[::-1], parts, parts[::-1]):
        found = tiny.method.start(tiny.sizes, 0, sum_updates(updates, table)).tensors
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=0)


def test_random_features_are_the_positive_part_of_a_projection_of_the_seed(federation):
    run = federation(RANDOM, images=8, seed=3).run(0)
    x, labels = features_and_labels(run.tiny)
    drawn = projection(32, 40, seed=3)
    assert abs(drawn.mean()) < 0.1
    assert drawn.std().item() == pytest.approx(1, abs=0.1)
    expected = ridge(np.maximum(x @ drawn.double().numpy(), 0), labels, 0.01)
    np.testing.assert_allclose(run.state.tensors["head"].numpy(), expected[:, :-1], atol=1e-4)
    assert run.accuracy(0) == 1
    assert run.accuracy(3) == 1  # held out: others sent statistics of its classes
    assert not torch.equal(drawn, projection(32, 40, seed=4))
    assert "projection" not in run.tiny.sent(run.state, 0)
    assert torch.equal(drawn, torch.randn(32, 40, generator=torch_rng(3, "projection")))
    assert "projection" not in Fed3R().personal(run.tiny.client(0), {}), (
        "without random features none is drawn"
    )


@pytest.mark.parametrize(
    ("method", "published"),
    [
        (Fed3R(), 769 * 770 // 2 + 769 * 10),  # (d + 1) (d + 2) / 2 + (d + 1) C_k
        (Fed3R(head_bias=False), 768 * 769 // 2 + 768 * 10),
        (Fed3R(features="random", head_bias=False), 2000 * 2001 // 2 + 2000 * 10),
    ],
    ids=["bias", "no bias", "random"],
)
def test_a_client_sends_what_the_publication_counts_less_what_follows_from_the_rest(method, published):
    """With a bias the publication's A has a row more: the sum of B's rows. Its bias row of B are counts."""
    table = method.table(CIFAR100)
    config = fedcue.configure("default", ["method=fed3r", "transport=sparse"])
    specs = [spec for spec in table if spec.replied]
    reply = {spec.name: torch.zeros(*spec.shape, dtype=spec.dtype) for spec in specs}
    reply["holds"][:10] = 5
    wire = Wire(config, table)
    received = wire.first_reply(Update(0, 50, reply))
    width = method.described(CIFAR100).width
    counts, row_of_ones = (10, width + 1) if method.head_bias else (0, 0)
    assert wire.traffic.upload_floats + counts + row_of_ones == published
    assert wire.traffic.upload_bytes == 8 * (wire.traffic.upload_floats + 10) + 4 * 10  # and which classes
    assert count_floats(received.tensors) == width * (width + 1) // 2 + width * 100


def test_what_no_robust_rule_is_known_for_is_refused_by_name():
    for setting, reason in (("aggregate=median", "moments"),):
        config = fedcue.configure("default", [*SMALL, "method=fed3r", setting, "clients_per_round=5"])
        with pytest.raises(ConfigError, match=f"cannot protect fed3r.*{reason}"):
            fedcue.run(config)
