"""Heads made of statistics: what clients send for them, and what the server makes of that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_federation import TinyFederation

from fedcue.aggregate.class_means import whole
from fedcue.aggregate.closed_form import SHRINKAGE
from fedcue.methods.ncm import NCM
from fedcue.methods.statistics_head import class_statistics
from fedcue.model.prompted import no_prompts
from fedcue.types import Sizes

CLIENTS = range(3)  # the fourth one of the tiny federation is held out


def features_and_labels(tiny: TinyFederation) -> tuple[np.ndarray, np.ndarray]:
    """Return the bare backbone's final cls tokens of all training images."""
    parts = []
    for client in CLIENTS:
        batch = tiny.batch(client)
        parts.append((tiny.model.features(batch.inputs, no_prompts)[:, 0], batch.labels))
    return tuple(torch.cat(part).double().numpy() for part in zip(*parts, strict=True))


def expected_head(x: np.ndarray, labels: np.ndarray, scale: float, whiten: bool) -> dict[str, np.ndarray]:
    """Compute the head from the images themselves, all in one place."""
    means = np.stack([x[labels == c].mean(0) for c in range(4)])
    transform = np.eye(x.shape[1])
    if whiten:
        within = x - means[labels.astype(int)]
        spread = within.T @ within / (len(x) - 4)
        even = np.eye(len(spread)) * np.trace(spread) / len(spread)
        transform = np.linalg.inv(np.linalg.cholesky((1 - SHRINKAGE) * spread + SHRINKAGE * even))
    centre = means.mean(0)
    rows = (means - centre) @ transform.T
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    head = scale / lengths.mean() * (rows / lengths) @ transform
    return {"head": head, "head_bias": -head @ centre}


@pytest.mark.parametrize("whiten", [False, True])
def test_the_head_is_that_of_all_images_class_means(federation, whiten):
    tiny = federation(NCM(whiten=whiten, scale=3.0))
    expected = expected_head(*features_and_labels(tiny), 3.0, whiten)
    for name, tensor in tiny.start().tensors.items():
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("whiten", [False, True])
def test_clients_send_class_sums_counts_and_if_asked_for_moments(federation, whiten):
    run = federation(NCM(whiten=whiten), images=8).run(0)
    reply, batch = run.replies[0].tensors, run.tiny.batch(0)
    x = run.tiny.model.features(batch.inputs, no_prompts)[:, 0]
    torch.testing.assert_close(reply["centroids"][0, 0], x[batch.labels == 0].sum(0))
    assert reply["holds"].tolist() == [4, 4, 0, 0]
    assert set(reply) == {"centroids", "holds"} | ({"moments"} if whiten else set())
    if whiten:
        torch.testing.assert_close(whole(reply["moments"]).float(), x.T @ x)


def test_whitening_by_class_means_sends_no_second_moments_and_uses_fedcofs_covariance(federation):
    run = federation(NCM(whiten=True, covariance="means", scale=3.0)).run(0)
    assert set(run.replies[0].tensors) == {"centroids", "holds"}
    assert run.tiny.host.table.each == ("centroids", "holds")
    means, counts = (sum(reply.tensors[name] for reply in run.replies) for name in ("centroids", "holds"))
    means, counts = (means[0] / counts[:, None]).double().numpy(), counts.numpy()
    scatter, freedom = np.zeros((32, 32)), 0
    for c in (1, 2):  # which two clients hold: classes 0 and 3 say nothing
        for reply in run.replies:
            if number := int(reply.tensors["holds"][c]):
                apart = reply.tensors["centroids"][0, c].double().numpy() / number - means[c]
                scatter += (counts[c] - 1) * number * np.outer(apart, apart)
        freedom += counts[c] - 1
    spread = scatter / freedom
    shrunk = (1 - SHRINKAGE) * spread + SHRINKAGE * np.trace(spread) / 32 * np.eye(32)
    transform = np.linalg.inv(np.linalg.cholesky(shrunk))
    rows = (means - means.mean(0)) @ transform.T
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    expected = 3.0 / lengths.mean() * (rows / lengths) @ transform
    np.testing.assert_allclose(run.state.tensors["head"].numpy(), expected, rtol=2e-3, atol=2e-3)


def test_where_no_class_has_two_holders_the_means_are_taken_as_they_are(federation):
    labels = [[0, 0], [1, 1], [2, 2], [3]]
    whitened = federation(NCM(whiten=True, covariance="means"), labels=labels).start().tensors
    plain = federation(NCM(), labels=labels).start().tensors
    torch.testing.assert_close(whitened["head"], plain["head"], rtol=1e-4, atol=1e-4)


def test_there_are_no_rounds_and_under_privacy_features_have_length_one():
    assert NCM.fixed == {"rounds": 0}
    assert NCM.under_dp == {"backbone.feature_norm": 1.0, "privacy.head_share": 0.9}


def test_single_replies_are_needed_for_whitening_by_class_means_alone():
    sizes = Sizes(classes=3, width=5, depth=2, patch=4, clients=2)
    assert NCM(whiten=True, covariance="means").table(sizes).each == ("centroids", "holds")
    for method in (NCM(), NCM(whiten=True), NCM(covariance="means")):
        assert method.table(sizes).each == ()


def test_a_class_of_one_image_has_a_row_and_one_of_none_has_zeros(federation):
    head = federation(NCM(), labels=[[0, 0], [0, 1], [1], [2, 3]]).start().tensors["head"]
    assert head.any(1).tolist() == [True, True, False, False]


def test_without_a_bias_the_head_alone_is_kept_from_the_start(federation):
    state = federation(NCM(head_bias=False), images=8).start()
    assert set(state.tensors) == {"head"}
    assert state.round == 0


def test_a_prototype_gives_its_own_class_the_logit_scale_on_average(federation):
    tiny = federation(NCM(scale=7.0), images=8)
    x, labels = features_and_labels(tiny)
    means = torch.from_numpy(np.stack([x[labels == c].mean(0) for c in range(4)])).float()
    head = tiny.start().tensors
    own = (means @ head["head"].T + head["head_bias"]).diagonal()
    assert own.mean().item() == pytest.approx(7.0, rel=1e-4)


def test_statistics_are_declared_with_a_row_for_each_class_and_half_of_a_square():
    sizes = Sizes(classes=3, width=5, depth=2, patch=4, clients=2)
    declared = {spec.name: spec for spec in class_statistics(sizes, moments=True, parts=2)}
    assert {name: spec.shape for name, spec in declared.items()} == {
        "centroids": (2, 3, 5),
        "holds": (3,),
        "moments": (15,),
    }
    assert (declared["centroids"].rows, declared["holds"].rows, declared["moments"].rows) == (1, 0, None)
    assert declared["holds"].dtype == torch.int64
    assert declared["centroids"].kind is None, "of parts that are dealt out no sensitivity is known"
    plain = class_statistics(sizes)
    assert [(spec.name, spec.shape, spec.each) for spec in plain] == [
        ("centroids", (1, 3, 5), False),
        ("holds", (3,), False),
    ]
    assert plain[0].kind == "class_sums"
    assert all(spec.each for spec in class_statistics(sizes, each=True))
