"""A federation on one machine: every client's data, read and shared out as the configuration says."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedcue.data.client import Clients, make_clients
from fedcue.data.dataset import Dataset
from fedcue.data.partition import Partition
from fedcue.data.store import PixelStore, decode_images
from fedcue.errors import ConfigError
from fedcue.federate.roster import Roster
from fedcue.federate.site import Site
from fedcue.model.backbone import load_backbone
from fedcue.model.prompted import PromptedViT, has_bfloat16
from fedcue.model.vit import Architecture
from fedcue.rng import rng
from fedcue.settings import RunConfig

log = logging.getLogger(__name__)

PIECE = 16
"""Images whose frozen values are computed together where clients share images."""


class Federation(Site):
    """Everything a run needs, built from its configuration alone."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        dataset = self._load_dataset()
        model = self._load_model()
        clients = split(config, dataset)
        pixels = self._decode(dataset, self._used(clients.partition), model.architecture.image_size)
        clients = clients.without(pixels.bad)
        self.roster = describe(config, dataset, model.architecture, clients)
        self.budget = self.roster.budget
        super().__init__(config, dataset, clients, pixels, model, self.roster.setting, self.roster.protection)
        self.partition = clients.partition

    def _load_dataset(self) -> Dataset:
        return self.config.data.load(self.config.seed)  # type: ignore[no-any-return]

    def _load_model(self) -> PromptedViT:
        return load_model(self.config)

    def _decode(self, dataset: Dataset, indices: NDArray[np.int64], size: int) -> PixelStore:
        return decode_used(self.config, dataset, indices, size)

    def _used(self, partition: Partition) -> NDArray[np.int64]:
        parts = [partition.pool("train")]
        if self.config.evaluation.on == "test":
            parts.append(partition.pool("test"))
        return np.unique(np.concatenate(parts))

    def _groups(self) -> Sequence[NDArray[np.int64]]:
        """Return each client's images or, where clients share images, pieces of all of them."""
        if not self.partition.shares_images:
            return super()._groups()
        everything = np.setdiff1d(self._used(self.partition), self.pixels.bad)
        return [everything[start : start + PIECE] for start in range(0, len(everything), PIECE)]

    @property
    def training_clients(self) -> NDArray[np.int64]:
        """Ids of the clients that may be sampled."""
        return self.roster.training_clients

    @cached_property
    def places(self) -> Mapping[int, int] | Sequence[int]:
        """Every client is here, in the order of the ids."""
        return range(len(self.clients))


def split(config: RunConfig, dataset: Dataset) -> Clients:
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
    """Load the frozen backbone onto the device, to be run in the precision asked for."""
    check_device(config.device)
    if config.precision == "bfloat16" and not has_bfloat16(config.device):
        log.warning("This processor has no bfloat16: precision=bfloat16 is emulated, slower than float32.")
    backbone = load_backbone(config.backbone.name, config.backbone.image_size)
    return PromptedViT(backbone.to(config.device), config.precision)


def check_device(device: str) -> None:
    """Refuse a device on which nothing can be computed here."""
    try:
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"device={device!r} cannot be used here: {str(error)[:200]}. Give device=cpu, or cuda where "
            "there is a GPU."
        ) from error


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


def describe(config: RunConfig, dataset: Dataset, architecture: Architecture, clients: Clients) -> Roster:
    """Return what a server may know of the clients."""
    heldout = np.zeros(len(clients), dtype=np.bool_)
    heldout[clients.heldout] = True
    return Roster(
        config,
        dataset.name,
        dataset.classes,
        architecture,
        names=clients.partition.names,
        domains=clients.partition.domains,
        heldout=heldout,
        train_sizes=clients.train_sizes,
        test_sizes=clients.test_sizes,
    )
