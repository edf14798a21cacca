"""The real files next to the repository, where they exist."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest
from support.data_files import REAL, real_files

from fedcue.data.clients import make_clients
from fedcue.data.partition import ByDomain, Dirichlet, Pathological
from fedcue.data.pixels import decode_images
from fedcue.data.readers.public import CIFAR100, PACS, TinyImageNet
from fedcue.rng import rng


@real_files("cifar100")
def test_all_of_cifar100_is_opened_and_partitioned_in_seconds() -> None:
    started = time.perf_counter()
    dataset = CIFAR100(root=REAL / "cifar100").load(0)
    partition = Pathological(clients=100, classes_per_client=10).split(dataset, rng(0, "partition"))
    clients = make_clients(dataset, partition, heldout=0.1, seed=0)
    assert time.perf_counter() - started < 10
    assert (len(dataset.train), len(dataset.test)) == (50_000, 10_000)
    assert dataset.classes[:2] == ("apple", "aquarium_fish")
    assert all((client.class_priors > 0).sum() == 10 for client in clients)
    assert sum(client.heldout for client in clients) == 10


@real_files("cifar100")
def test_decoding_some_of_cifar100_leaves_the_rest_on_disk() -> None:
    options = CIFAR100(root=REAL / "cifar100", train_per_class=2, test_per_class=1)
    dataset = options.load(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = decode_images(dataset, np.arange(len(dataset)), 32, options)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert store.images.shape == (300, 3, 32, 32)
    assert grown < 80  # megabytes; the files hold 107
    assert len({bytes(image.numpy().tobytes()) for image in store.images}) == 300


@real_files("tiny-imagenet")
def test_tiny_imagenet() -> None:
    options = TinyImageNet(root=REAL / "tiny-imagenet")
    dataset = options.load(0)
    assert (len(dataset.train), len(dataset.test), len(dataset.classes)) == (10_000, 3_000, 200)
    partition = Dirichlet(clients=200, alpha=0.3).split(dataset, rng(0, "partition"))
    assert {len(part) for part in partition.train} == {50}
    assert decode_images(dataset, dataset.test[:3], 64, options).images.float().std() > 10


@real_files("pacs")
@pytest.mark.parametrize("classes_per_client", [5, None])
def test_pacs(classes_per_client: int | None) -> None:
    dataset = PACS(root=REAL / "pacs").load(0)
    assert (len(dataset), len(dataset.test)) == (9_991, 1_998)
    assert dataset.domain_names == ("art_painting", "cartoon", "photo", "sketch")
    rule = ByDomain(clients_per_domain=10, classes_per_client=classes_per_client)
    partition = rule.split(dataset, rng(0, "partition"))
    clients = make_clients(dataset, partition, heldout=4, seed=0)
    assert sorted(client.domain for client in clients if client.heldout) == sorted(dataset.domain_names)
