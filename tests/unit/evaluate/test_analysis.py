"""What figures need of a run: who was taken for what, and how many images of a class there were."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from support.tiny_federation import TinyFederation

from fedcue.methods.fedvpt import FedVPT
from fedcue.methods.head import HeadTuning
from fedcue.methods.pep_variants import PEPVariants


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
