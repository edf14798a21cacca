"""What figures need of a run: who was taken for what, and how many images of a class there were."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from support.tiny_federation import TinyFederation

from fedcue.evaluate import analysis
from fedcue.evaluate.analysis import _look_inside
from fedcue.methods.fedvpt import FedVPT
from fedcue.methods.head import HeadTuning
from fedcue.methods.pep_variants import PEPVariants
from fedcue.types import ClientMemory, ServerState


def test_a_confusion_has_the_true_class_in_its_row_and_the_predicted_one_in_its_column():
    run = TinyFederation(HeadTuning(), images=8).run(0)
    found = load_file(Path(run.folder.name) / "run" / "analysis.safetensors")
    expected = torch.zeros(4, 4, dtype=torch.int32)
    for label, predicted in zip(found["labels"].tolist(), found["predicted"].tolist(), strict=True):
        expected[label, predicted] += 1
    assert torch.equal(found["confusion"], expected)
    assert not torch.equal(expected, expected.T), "an untrained head takes one class for another"
    assert found["confusion"].sum(1).tolist() == [8, 8, 8, 8]  # each class is held by two clients
    assert found["clients"].tolist() == [client for client in range(4) for _ in range(8)]


def test_counts_are_those_of_each_client_and_class():
    run = TinyFederation(HeadTuning(), images=8).run(0)
    found = load_file(Path(run.folder.name) / "run" / "analysis.safetensors")
    expected = [[4, 4, 0, 0], [0, 4, 4, 0], [0, 0, 4, 4], [4, 0, 0, 4]]
    assert found["train_class_counts"].tolist() == expected
    assert found["test_class_counts"].tolist() == expected


def test_mixing_weights_are_means_over_the_images_of_a_class():
    run = TinyFederation(PEPVariants(), images=8).run(1)
    found = load_file(Path(run.folder.name) / "run" / "analysis.safetensors")["mean_mixing_weights"]
    assert found.shape == (4, 3, 4)
    weights, labels = [], []
    for client in range(4):
        samples, tensors = run.for_test(client)
        batch = next(iter(samples.batches(100)))
        weights.append(run.tiny.method.inspect(tensors, batch)["mixing_weights"])
        labels.append(batch.labels)
    everything, truth = torch.cat(weights), torch.cat(labels)
    for c in range(4):
        torch.testing.assert_close(found[c], everything[truth == c].mean(0))


def test_training_images_and_test_images_are_counted_apart():
    train, test = [[0, 0, 0, 1], [1, 1, 2], [2, 2], [0, 3]], [[0, 1, 1], [1, 2], [2, 1], [3]]
    run = TinyFederation(HeadTuning(), labels=train, test_labels=test).run(0)
    found = load_file(Path(run.folder.name) / "run" / "analysis.safetensors")
    for part, labels in (("train", train), ("test", test)):
        expected = [[own.count(c) for c in range(4)] for own in labels]
        assert found[f"{part}_class_counts"].tolist() == expected


def test_cls_tokens_are_those_of_the_first_images_of_every_group_of_clients():
    """Six of 32 images: each of four clients, tested alone, gives the first two of its own, at all blocks."""
    settings = ["evaluation.cls_sample=6", "evaluation.chunk=8"]
    run = TinyFederation(FedVPT(), images=8, settings=settings).run(1)
    found = load_file(Path(run.folder.name) / "run" / "analysis.safetensors")
    tokens, labels = [], []
    for client in range(4):
        samples, tensors = run.for_test(client)
        batch = next(iter(samples.batches(100)))
        blocks = tuple(range(9))
        tokens.append(batch.cls_tokens(run.tiny.method.prompter(tensors, batch), blocks)[:2])
        labels.append(batch.labels[:2])
    torch.testing.assert_close(found["cls_tokens"], torch.cat(tokens))
    assert found["cls_labels"].tolist() == torch.cat(labels).tolist()


def test_tokens_of_a_method_without_prompts_are_not_looked_at():
    run = TinyFederation(HeadTuning(), images=8, settings=["evaluation.cls_sample=6"]).run(0)
    found = load_file(Path(run.folder.name) / "run" / "analysis.safetensors")
    assert "cls_tokens" not in found
    assert found["images"].tolist() == list(range(32))


def test_of_a_sample_of_clients_no_counts_and_prototypes_are_shown():
    settings = ["evaluation.clients=2", "evaluation.prototype_sample=all"]
    run = TinyFederation(HeadTuning(), images=8, settings=settings).run(0)
    found = load_file(Path(run.folder.name) / "run" / "analysis.safetensors")
    assert set(found) == {"images", "clients", "labels", "predicted", "confusion"}


class Looked:
    """A federation, its host and its method in one, which notes what it is asked."""

    def __init__(self, cls_sample: int) -> None:
        evaluation = SimpleNamespace(cls_sample=cls_sample, chunk=3)
        self.config = SimpleNamespace(evaluation=evaluation, method=self, seed=7)
        self.host, self.sizes = self, SimpleNamespace(classes=4, depth=2)
        self.labels = {(1, 2): [0, 0, 1, 0, 0, 1, 3, 0], (0,): [1, 0]}
        self.tests: list[tuple] = []
        self.walked = 0

    def first_block(self, sizes):
        return 1

    def download(self, state, client, sizes, seed):
        assert (sizes, seed) == (self.sizes, 7)
        return {"sent": torch.tensor([client, state.round])}

    def prepare_test(self, group, download, memory):
        self.tests.append((group, download.client, download.round, memory.tensors.get("own")))
        samples = SimpleNamespace(batches=lambda size: self.batches(self.labels[tuple(group)], size))
        return samples, download.tensors

    def batches(self, labels, size):
        for start in range(0, len(labels), size):
            own = torch.tensor(labels[start : start + size])
            yield SizedBatch(own, torch.arange(start, start + len(own)), self)

    def inspect(self, tensors, batch):
        client = tensors["sent"][0]
        values = (10 * client + batch.number).double()
        return {"weights": values[:, None, None] * torch.ones(2, 3), "number": values}

    def prompter(self, tensors, batch):
        return lambda x: x + 100 * tensors["sent"][0]


class SizedBatch(SimpleNamespace):
    """Some images that are their numbers."""

    def __init__(self, labels, number, looked):
        super().__init__(labels=labels, number=number, looked=looked)

    def __len__(self):
        return len(self.labels)

    def cls_tokens(self, prompter, blocks):
        assert blocks == (1, 2)
        self.looked.walked += 1
        return prompter(self.number)[:, None].expand(-1, 2)


@pytest.mark.parametrize("share", [3, 4])
def test_what_is_shown_of_an_image_is_averaged_by_class_and_some_tokens_of_each_group_are_taken(share):
    """Two clients in one group, their images in batches of 3, 3 and 2; class 2 has none, class 3 one."""
    looked, told = Looked(cls_sample=2 * share - 1), []
    memories = {0: ClientMemory({"own": "zero"}), 1: ClientMemory({"own": "one"})}
    state, groups = ServerState(5, {}), [[1, 2], [0]]
    found = _look_inside(looked, state, memories, groups, lambda *news: told.append(news))
    assert looked.tests == [([1, 2], 1, 5, "one"), ([0], 0, 5, "zero")]
    assert told == [("looking inside the model", 0, 2), ("looking inside the model", 1, 2)]
    zero, one = (10 + 11 + 13 + 14 + 17 + 1) / 6, (12 + 15 + 0) / 3
    assert found["mean_number"].tolist() == pytest.approx([zero, one, 0, 16])
    assert found["mean_weights"].shape == (4, 2, 3)
    assert torch.equal(found["mean_weights"], found["mean_number"][:, None, None].expand(4, 2, 3))
    tokens = [*range(100, 100 + share), 0, 1]
    assert found["cls_tokens"].tolist() == [[token, token] for token in tokens]
    assert found["cls_labels"].tolist() == [*[0, 0, 1, 0][:share], 1, 0]
    assert looked.walked == (2 if share == 3 else 3), "images beyond the share do not pass the model"


def test_prototypes_of_the_tested_images_are_among_what_figures_need(monkeypatch):
    asked = []
    monkeypatch.setattr(
        analysis,
        "prototype_accuracy",
        lambda *given: asked.append(given) or {"prototype_top1": torch.ones(9)},
    )
    run = TinyFederation(HeadTuning(), images=8).run(0)
    found = load_file(Path(run.folder.name) / "run" / "analysis.safetensors")
    assert found["prototype_top1"].tolist() == [1] * 9
    federation, images, tell = asked[0]
    assert federation.config.method.name == "head"
    assert images.tolist() == found["images"].tolist()
    assert callable(tell)
