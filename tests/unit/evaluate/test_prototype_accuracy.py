"""Prototype accuracy by block equals a plain computation image by image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import SMALL

from fedcue.clients.federation import Federation, load_federation
from fedcue.config.layers import load
from fedcue.evaluate.analysis import prototype_accuracy, top_share
from fedcue.model.prompted import no_prompts


def cls_of(federation: Federation, image: int) -> np.ndarray:
    prefix = federation.model.prefix(federation.pixels[np.array([image])], project=False)
    blocks = tuple(range(federation.model.depth + 1))
    return federation.model.cls_tokens(prefix, no_prompts, blocks)[0].numpy().astype(np.float64)


def test_equals_a_plain_computation() -> None:
    settings = [*SMALL, "method=head", "data.train_per_class=6", "data.test_per_class=3", "heldout=1"]
    federation = load_federation(load("default", settings))
    labels = federation.dataset.labels
    known = [i for c in federation.clients if not c.heldout for i in c.train]
    tested = np.concatenate([client.test for client in federation.clients])
    found = prototype_accuracy(federation, tested)
    assert found["prototype_images"].tolist() == [len(known), len(known), len(tested), len(tested)]
    held, depth = sorted({labels[i] for i in known}), federation.model.depth
    assert len(held) < federation.host.sizes.classes  # a class that only the held-out client has
    vectors = {i: cls_of(federation, i) for i in [*known, *tested.tolist()]}
    for block in range(1, depth + 1):
        prototypes = [np.mean([vectors[i][block] for i in known if labels[i] == c], 0) for c in held]
        hits = {1: 0, 5: 0}
        for image in tested:
            vector = vectors[image][block]
            cosines = [p @ vector / np.linalg.norm(p) / np.linalg.norm(vector) for p in prototypes]
            order = [held[c] for c in np.argsort(cosines)[::-1]]
            for k in hits:
                hits[k] += labels[image] in order[:k]
        for k, right in hits.items():
            assert found[f"prototype_top{k}"][block].item() == pytest.approx(right / len(tested), abs=1e-6)
    assert found["prototype_top1"].shape == (depth + 1,)
    chance = np.isin(labels[tested], held).mean() / len(held)  # at block 0 cls has seen no image yet
    assert found["prototype_top1"][0].item() == pytest.approx(chance)
    assert found["prototype_top5"][0].item() == pytest.approx(5 * chance)
    assert found["prototype_top1"][-1] > 0.5


@pytest.mark.parametrize("sample", ["0", "4", "all"])
def test_the_sample_is_bounded_and_can_be_everything_or_nothing(sample: str) -> None:
    few = [*SMALL, "data.train_per_class=2", "data.test_per_class=1", "method=head"]
    federation = load_federation(load("default", [*few, f"evaluation.prototype_sample={sample}"]))
    training = sum(len(federation.clients[c].train) for c in federation.roster.training_clients)
    tested = federation.clients[0].test
    found = prototype_accuracy(federation, tested)
    if sample == "0":
        assert found == {}
    else:
        taken = [4, min(4, len(tested))] if sample == "4" else [training, len(tested)]
        assert found["prototype_images"].tolist() == [taken[0], training, taken[1], len(tested)]


def test_images_pass_the_model_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [*SMALL, "data.train_per_class=2", "data.test_per_class=1", "method=head", "evaluation.chunk=5"]
    federation = load_federation(load("default", few))
    sizes, prefix = [], federation.model.prefix
    monkeypatch.setattr(
        federation.model, "prefix", lambda images, **rest: sizes.append(len(images)) or prefix(images, **rest)
    )
    training = sum(len(federation.clients[c].train) for c in federation.roster.training_clients)
    prototype_accuracy(federation, np.arange(7))
    expected = [*[5] * (training // 5), *filter(None, [training % 5]), 5, 2]
    assert sizes == expected


def test_ties_are_shared_and_unknown_classes_are_missed() -> None:
    similarity = torch.tensor([[[0.5, 0.5, 0.1]], [[0.2, 0.9, -torch.inf]]])
    own = torch.tensor([[[0.5]], [[-torch.inf]]])
    assert top_share(similarity, own, 1).tolist() == [[0.5], [0.0]]
    assert top_share(similarity, own, 2).tolist() == [[1.0], [0.0]]
