"""A federation on one machine: every client's data, read and shared out as the configuration says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fedcue.clients.host import Host
from fedcue.clients.roster import Roster
from fedcue.config.settings import RunConfig
from fedcue.data.clients import Clients, make_clients
from fedcue.data.dataset import Dataset
from fedcue.data.pixels import PixelStore, decode_images
from fedcue.errors import ConfigError
from fedcue.model.backbone import load_backbone
from fedcue.model.frozen_cache import FrozenCache, Level
from fedcue.model.prompted import PromptedViT, has_bfloat16
from fedcue.model.vit import Architecture, VisionTransformer
from fedcue.rng import rng
from fedcue.types import Sizes

log = logging.getLogger(__name__)

_PIECE = 16
"""Images whose frozen values are computed together where clients share images."""

_MOST_COUNTED = 1000
"""The concentration of class mixes is learned from at most so many training clients."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything a run on this machine needs."""

    config: RunConfig
    dataset: Dataset
    clients: Clients
    pixels: PixelStore
    model: PromptedViT
    roster: Roster
    host: Host
    frozen_level: Level = "nothing"
    """What is kept of the frozen backbone's values."""

    def test_groups(self, without: Collection[int] = ()) -> list[list[int]]:
        """Group consecutive clients into chunks of about ``evaluation.chunk`` test images.

        The groups follow from the data alone. A method with memories is tested client by client.
        """
        groups: list[list[int]] = []
        images = 0
        for client in self.roster.tested():
            size = self.host.test_size(client)
            if client in without or not size:
                continue
            full = images + size > self.config.evaluation.chunk
            if self.host.table.kept or not groups or full:
                groups.append([])
                images = 0
            groups[-1].append(client)
            images += size
        return groups


def load_federation(config: RunConfig, tell: Callable[[str, int, int], None] | None = None) -> Federation:
    """Read the data, load the model and share the images out, from the configuration alone.

    ``tell`` is called with what is being done, how many steps of it are done and how many there are.
    """
    tell = tell or (lambda name, done, total: None)
    tell("reading the data", 0, 0)
    dataset = config.data.load(config.seed)
    tell("loading the backbone", 0, 0)
    model = load_model(config)
    clients = split(config, dataset)
    wanted, size = used_images(config, clients), model.architecture.image_size
    pixels = decode_images(dataset, wanted, size, config.data, partial(tell, "decoding images"))
    clients = clients.without(pixels.bad)
    return gather(config, dataset, clients, pixels, model)


def gather(
    config: RunConfig, dataset: Dataset, clients: Clients, pixels: PixelStore, model: PromptedViT
) -> Federation:
    """Return the federation of these clients, wherever their images and the model come from."""
    roster = describe(config, dataset, model.architecture, clients)
    frozen = frozen_values(config, model, pixels, image_groups(config, clients), roster.sizes)
    counted = [] if config.privacy.differential else roster.training_clients[:_MOST_COUNTED].tolist()
    host = Host(
        config, clients, range(len(clients)), frozen, roster.sizes, roster.protection, counted=counted
    )
    return Federation(config, dataset, clients, pixels, model, roster, host, frozen.level)


def used_images(config: RunConfig, clients: Clients) -> NDArray[np.int64]:
    """Return every image that a run reads, once each."""
    parts = [clients.partition.pool("train")]
    if config.evaluation.on == "test":
        parts.append(clients.partition.pool("test"))
    return np.unique(np.concatenate(parts))


def image_groups(config: RunConfig, clients: Clients) -> Sequence[NDArray[np.int64]]:
    """Return the images whose frozen values are computed together.

    These are the images a client trains or is tested on or, where clients share images, pieces of all.
    """
    if not clients.partition.shares_images:
        return [part for client in clients for part in (client.train, client.tested(config.evaluation.on)[0])]
    everything = np.setdiff1d(used_images(config, clients), clients.bad)
    return [everything[start : start + _PIECE] for start in range(0, len(everything), _PIECE)]


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
    """Load the frozen backbone onto the device, to be run in the precision asked for.

    With a cluster the device is a worker's; the machine that gathers what they send may have none like it.
    """
    device = "cpu" if config.engine.name == "ray" else config.device
    backbone = load_backbone(config.backbone.name, config.backbone.image_size)
    return prompted(config, backbone, device)


def prompted(config: RunConfig, backbone: VisionTransformer, device: str) -> PromptedViT:
    """Return the frozen backbone on a device, to be run in the precision asked for."""
    try:
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"device={device!r} cannot be used here: {str(error)[:200]}. Give device=cpu, or cuda where "
            "there is a GPU."
        ) from error
    if config.precision == "bfloat16" and has_bfloat16(device) is False:
        log.warning("This processor has no bfloat16: precision=bfloat16 is emulated, slower than float32.")
    return PromptedViT(backbone.to(device), config.precision, config.backbone.feature_norm)


def frozen_values(
    config: RunConfig,
    model: PromptedViT,
    pixels: PixelStore,
    groups: Sequence[NDArray[np.int64]],
    sizes: Sizes,
) -> FrozenCache:
    """Return what the method needs of the frozen backbone, kept as far as the settings allow."""
    method, cache = config.method, config.cache
    first, bare = method.first_block(sizes), method.bare_blocks(sizes)
    return FrozenCache(model, pixels.__getitem__, groups, first, bare, cache.limit_mb * 2**20, cache.folder)


def describe(config: RunConfig, dataset: Dataset, architecture: Architecture, clients: Clients) -> Roster:
    """Return what a server may know of the clients."""
    left_out = clients.partition.left_out
    return Roster(
        config,
        dataset.name,
        dataset.classes,
        architecture,
        names=clients.partition.names,
        domains=clients.partition.domains,
        heldout=clients.heldout,
        train_sizes=clients.train_sizes,
        test_sizes=clients.test_sizes,
        partition=clients.partition.rule,
        dropped=len(left_out.few_training) + len(left_out.few_test),
    )
