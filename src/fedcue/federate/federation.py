"""A federation on one machine: every client's data, read and shared out as the configuration says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcue.data.client import ClientData, drop_images, make_clients
from fedcue.data.dataset import Dataset
from fedcue.data.store import PixelStore, decode_images
from fedcue.federate.roster import Roster
from fedcue.federate.site import Site
from fedcue.model.backbone import load_backbone
from fedcue.model.prompted import PromptedViT
from fedcue.model.vit import Architecture
from fedcue.rng import rng
from fedcue.settings import RunConfig


class Federation(Site):
    """Everything a run needs, built from its configuration alone."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        dataset = self._load_dataset()
        model = self._load_model()
        clients = split(config, dataset)
        pixels = self._decode(dataset, self._used(clients), model.architecture.image_size)
        clients = drop_images(dataset, clients, pixels.bad)
        self.roster = describe(config, dataset, model.architecture, clients)
        self.budget = self.roster.budget
        super().__init__(config, dataset, clients, pixels, model, self.roster.setting, self.roster.protection)

    def _load_dataset(self) -> Dataset:
        return self.config.data.load(self.config.seed)  # type: ignore[no-any-return]

    def _load_model(self) -> PromptedViT:
        return load_model(self.config)

    def _decode(self, dataset: Dataset, indices: NDArray[np.int64], size: int) -> PixelStore:
        return decode_used(self.config, dataset, indices, size)

    def _used(self, clients: Sequence[ClientData]) -> NDArray[np.int64]:
        return np.unique(np.concatenate([part for client in clients for part in self._parts(client)]))

    @property
    def training_clients(self) -> NDArray[np.int64]:
        """Ids of the clients that may be sampled."""
        return self.roster.training_clients

    @cached_property
    def places(self) -> Mapping[int, int] | Sequence[int]:
        """Every client is here, in the order of the ids."""
        return range(len(self.clients))


def split(config: RunConfig, dataset: Dataset) -> tuple[ClientData, ...]:
    """Share a dataset out to clients as the configuration says."""
    on_validation = config.evaluation.on == "validation"
    return make_clients(
        dataset,
        config.partition.split(dataset, rng(config.seed, "partition")),
        heldout=config.heldout,
        validation_share=config.evaluation.validation_share if on_validation else 0.0,
        seed=config.seed,
    )


def load_model(config: RunConfig) -> PromptedViT:
    """Load the frozen backbone onto the device."""
    backbone = load_backbone(config.backbone.name, config.backbone.image_size)
    return PromptedViT(backbone.to(config.device))


def decode_used(config: RunConfig, dataset: Dataset, indices: NDArray[np.int64], size: int) -> PixelStore:
    """Decode these images to the backbone's size."""
    data = config.data
    return decode_images(
        dataset,
        indices,
        size,
        on_bad=data.on_bad_image,
        max_pixels=data.max_pixels,
        cache_bytes=data.cache_bytes,
        cache_folder=data.cache_folder,
    )


def describe(
    config: RunConfig, dataset: Dataset, architecture: Architecture, clients: Sequence[ClientData]
) -> Roster:
    """Return what a server may know of the clients."""
    return Roster(
        config,
        dataset.name,
        dataset.classes,
        architecture,
        names=[client.name for client in clients],
        domains=[client.domain for client in clients],
        heldout=np.array([client.heldout for client in clients]),
        train_sizes=np.array([len(client.train) for client in clients]),
        test_sizes=np.array([len(client.test) for client in clients]),
    )
