"""Prototype accuracy by block equals a plain computation image by image."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import SMALL

from fedcue.clients.federation import Federation, load_federation
from fedcue.config.layers import load
from fedcue.errors import Interrupted
from fedcue.evaluate import analysis
from fedcue.evaluate.analysis import _cls_by_block, prototype_accuracy, top_share
from fedcue.machine import StopFlag
from fedcue.model.prompted import no_prompts
from fedcue.rng import rng


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
    own = torch.tensor([[0.5], [-torch.inf]])
    assert top_share(similarity, own, 1).tolist() == [[0.5], [0.0]]
    assert top_share(similarity, own, 2).tolist() == [[1.0], [0.0]]


def test_similarities_closer_than_rounding_are_a_tie_and_others_are_not() -> None:
    for apart, expected in (
        (1e-13, [0.5, 1.0]),
        (1e-9, [0.0, 1.0]),
        (-1e-13, [0.5, 1.0]),
        (-1e-9, [1.0, 1.0]),
    ):
        similarity = torch.tensor([[[0.5, 0.5 + apart, -1.0]]], dtype=torch.float64)
        own = similarity[:, :, 0]
        assert [top_share(similarity, own, k).item() for k in (1, 2)] == expected


LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 3, 4, 4, 5, 5, 0, 1, 2, 3, 4, 5, 6, 6, 0, 3])
"""Twelve images of two clients that train, of six classes (one image of class 3), and ten tests of seven."""
VECTORS = np.random.default_rng(0).normal(size=(len(LABELS), 2, 2))


def given(monkeypatch: pytest.MonkeyPatch, sample: object) -> tuple[Federation, list[list[int]]]:
    """Return what prototypes need to know of a federation whose vectors are given, and what was asked for."""
    asked = []

    def vectors(federation: Federation, images: np.ndarray, progress) -> Iterator[tuple]:
        asked.append(images.tolist())
        for start in range(0, len(images), 5):
            progress(start, len(images))
            some = images[start : start + 5]
            yield some, torch.from_numpy(VECTORS[some])

    monkeypatch.setattr(analysis, "_cls_by_block", vectors)
    known = SimpleNamespace(
        config=SimpleNamespace(evaluation=SimpleNamespace(prototype_sample=sample), seed=3),
        clients=[SimpleNamespace(train=part) for part in (np.arange(7), np.array([]), np.arange(7, 12))],
        roster=SimpleNamespace(training_clients=[0, 2]),
        dataset=SimpleNamespace(labels=LABELS),
        host=SimpleNamespace(sizes=SimpleNamespace(classes=7, width=2)),
        model=SimpleNamespace(depth=1),
    )
    return known, asked


def test_an_image_is_right_if_few_prototypes_are_nearer_than_that_of_its_class(monkeypatch) -> None:
    """Cosines may be negative: a class that nobody trains is no nearer for that."""
    told: list[tuple] = []
    federation, _ = given(monkeypatch, "all")
    found = prototype_accuracy(federation, np.arange(12, 22), lambda *news: told.append(news))
    for block in range(2):
        centres = [VECTORS[:12][LABELS[:12] == c, block].sum(0) for c in range(6)]
        hits = {1: 0, 5: 0}
        for image in range(12, 22):
            vector = VECTORS[image, block]
            cosines = [c @ vector / np.linalg.norm(c) / np.linalg.norm(vector) for c in centres]
            for k in hits:
                hits[k] += LABELS[image] in np.argsort(cosines)[::-1][:k]
        for k, right in hits.items():
            assert found[f"prototype_top{k}"][block].item() == pytest.approx(right / 10)
    assert found["prototype_images"].tolist() == [12, 12, 10, 10]
    known, tests = "prototypes of training images", "prototypes on test images"
    assert told == [(known, 0, 12), (known, 5, 12), (known, 10, 12), (tests, 0, 10), (tests, 5, 10)]


@pytest.mark.parametrize("sample", [4, "all"])
def test_a_sample_follows_from_the_seed_for_training_and_for_test_images_alike(monkeypatch, sample) -> None:
    federation, asked = given(monkeypatch, sample)
    found = prototype_accuracy(federation, np.arange(12, 22))
    order = [rng(3, "prototype sample", part) for part in ("training", "test")]
    most = 4 if sample == 4 else 99
    assert asked[0] == order[0].permutation(np.arange(12))[:most].tolist()
    assert asked[1] == order[1].permutation(np.arange(12, 22))[:most].tolist()
    assert found["prototype_images"].tolist() == ([4, 12, 4, 10] if sample == 4 else [12, 12, 10, 10])


@pytest.mark.parametrize("images", [1, 5, 6, 10])
def test_bare_cls_tokens_come_chunk_by_chunk_from_every_block_and_the_output(images: int) -> None:
    seen, told = [], []

    def prefix(pixels: np.ndarray, project: bool) -> np.ndarray:
        assert not project, "the bare model's first block does that"
        return pixels

    def cls_tokens(prefix: np.ndarray, prompter, blocks: tuple[int, ...]) -> torch.Tensor:
        assert prompter is no_prompts
        seen.append(len(prefix))
        return torch.from_numpy(prefix[:, None] * 10.0 + np.array(blocks))[..., None].float()

    federation = SimpleNamespace(
        model=SimpleNamespace(depth=2, prefix=prefix, cls_tokens=cls_tokens),
        config=SimpleNamespace(evaluation=SimpleNamespace(chunk=5)),
        host=SimpleNamespace(stop=StopFlag()),
        pixels=np.arange(100),
    )
    order = np.arange(50, 50 + images)[::-1]
    pairs = list(_cls_by_block(federation, order, lambda *news: told.append(news)))
    assert np.concatenate([some for some, _ in pairs]).tolist() == order.tolist()
    tokens = torch.cat([vectors for _, vectors in pairs])
    assert tokens.dtype == torch.float64
    assert tokens[..., 0].tolist() == [[10 * image + block for block in range(3)] for image in order]
    assert seen == [len(order[start : start + 5]) for start in range(0, images, 5)]
    assert told == [(start, images) for start in range(0, images, 5)]


def test_looking_at_prototypes_ends_when_the_run_is_stopped() -> None:
    flag = StopFlag()
    flag._number[0] = 15
    federation = SimpleNamespace(
        model=SimpleNamespace(depth=2),
        config=SimpleNamespace(evaluation=SimpleNamespace(chunk=5)),
        host=SimpleNamespace(stop=flag),
    )
    with pytest.raises(Interrupted):
        next(_cls_by_block(federation, np.arange(3), lambda done, total: None))
