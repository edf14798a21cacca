"""A federation on one machine: the clients' data, the frozen model, and what a client does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcue.data.client import ClientData, drop_images, make_clients
from fedcue.data.dataset import Dataset
from fedcue.data.images import flip_and_crop
from fedcue.data.store import PixelStore, decode_images
from fedcue.errors import ClientError, ConfigError, Interrupted
from fedcue.federate.budget import Budget
from fedcue.federate.interrupt import StopFlag
from fedcue.federate.protection import Guard, Protection, check_protection
from fedcue.federate.transport import check_transport
from fedcue.methods.base import Method, Visit
from fedcue.model.backbone import load_backbone
from fedcue.model.frozen import FrozenCache
from fedcue.model.prompted import PromptedViT
from fedcue.rng import rng, torch_rng
from fedcue.settings import RunConfig
from fedcue.train.samples import Samples
from fedcue.types import ClientMemory, Download, Setting, Tensors, Update


@dataclass(frozen=True)
class Prediction:
    """The test images of some clients, what they are and what the model takes them for."""

    images: NDArray[np.int64]
    clients: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]


class Federation:
    """Everything a run needs, built from its configuration alone."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.method: Method = config.method
        self.stop = StopFlag()
        self.dataset = self._load_dataset()
        self.model = self._load_model()
        partition = config.partition.split(self.dataset, rng(config.seed, "partition"))
        on_validation = config.evaluation.on == "validation"
        clients = make_clients(
            self.dataset,
            partition,
            heldout=config.heldout,
            validation_share=config.evaluation.validation_share if on_validation else 0.0,
            seed=config.seed,
        )
        self.pixels = self._decode(self._used(clients))
        self.clients = drop_images(self.dataset, clients, self.pixels.bad)
        self.setting = self._setting()
        self.method.check(self.setting)
        self._check_sampling()
        check_protection(config)
        check_transport(config)
        self.budget = Budget.of(config, self.training_clients, self._records())
        self.protection = Protection.of(config, self.budget.privacy)

    def _load_dataset(self) -> Dataset:
        return self.config.data.load(self.config.seed)  # type: ignore[no-any-return]

    def _load_model(self) -> PromptedViT:
        backbone = load_backbone(self.config.backbone.name, self.config.backbone.image_size)
        return PromptedViT(backbone.to(self.config.device))

    def _decode(self, indices: NDArray[np.int64]) -> PixelStore:
        data = self.config.data
        return decode_images(
            self.dataset,
            indices,
            self.model.architecture.image_size,
            on_bad=data.on_bad_image,
            max_pixels=data.max_pixels,
            cache_bytes=data.cache_bytes,
            cache_folder=data.cache_folder,
        )

    def _used(self, clients: Sequence[ClientData]) -> NDArray[np.int64]:
        return np.unique(np.concatenate([part for client in clients for part in self._parts(client)]))

    def _parts(self, client: ClientData) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        on_validation = self.config.evaluation.on == "validation"
        return client.train, client.validation if on_validation else client.test

    def _setting(self) -> Setting:
        shape = self.model.architecture
        domains = len({client.domain for client in self.clients})
        classes = len(self.dataset.classes)
        return Setting(classes, shape.width, shape.depth, shape.patch, len(self.clients), domains)

    def _check_sampling(self) -> None:
        available = len(self.training_clients)
        if self.config.clients_per_round > available:
            raise ConfigError(
                f"clients_per_round={self.config.clients_per_round}, but only {available} of "
                f"{len(self.clients)} clients train. Give at most {available}."
            )

    def _records(self) -> int:
        return sum(len(client.train) for client in self.clients if not client.heldout)

    @cached_property
    def training_clients(self) -> NDArray[np.int64]:
        """Ids of the clients that may be sampled."""
        return np.array([client.id for client in self.clients if not client.heldout], dtype=np.int64)

    @cached_property
    def cache(self) -> FrozenCache:
        """The frozen backbone's values: groups 2i and 2i + 1 train and test client i."""
        return FrozenCache(
            self.model,
            self.pixels.__getitem__,
            [part for client in self.clients for part in self._parts(client)],
            self.method.first_block(self.setting),
            self.method.bare_blocks(self.setting),
            self.config.cache.limit_mb * 2**20,
            self.config.cache.folder,
        )

    # What a client does, in whatever process

    def warm_up(self, client: int) -> Update | None:
        """Return the client's reply before round 0."""
        guard = self.protection.guard(client, "warm up")
        generator = torch_rng(self.config.seed, "warm up", client)
        reply = self.method.warm_up(self._visit(client, generator, guard))
        return None if reply is None else guard.leave(reply, {})

    def train(self, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train one client for one round."""
        client = download.client
        generator = torch_rng(self.config.seed, "client", client, download.round)
        guard = self.protection.guard(client, download.round)
        limit = self.config.client_timeout
        try:
            deadline = None if limit is None else time.monotonic() + limit
            visit = self._visit(client, generator, guard, deadline)
            update, memory = self.method.update(visit, download, memory)
        except Interrupted:
            raise
        except Exception as error:  # whatever goes wrong at one client must not end the run
            raise ClientError(f"{type(error).__name__}: {error}") from error
        for name, tensor in update.tensors.items():
            if not torch.isfinite(tensor).all():
                raise ClientError(f"its update of {name} is not finite")
        return guard.leave(update, download.tensors), memory

    def test(
        self, clients: Sequence[int], download: Download, memory: ClientMemory, final: bool
    ) -> Prediction:
        """Test some clients together (one at a time where the method keeps memories)."""
        samples = self.test_samples(clients)
        tensors = self.for_test(clients, download, memory, final, samples)
        predicted = []
        with torch.no_grad():
            for batch in samples.batches(self.config.evaluation.chunk):
                predicted.append(self.method.predict(self.model, tensors, batch).argmax(1).cpu())
        return Prediction(
            np.concatenate([self._parts(self.clients[client])[1] for client in clients]),
            np.concatenate([np.full(len(self._parts(self.clients[c])[1]), c) for c in clients]),
            samples.labels.numpy(),
            torch.cat(predicted).numpy(),
        )

    def for_test(
        self, clients: Sequence[int], download: Download, memory: ClientMemory, final: bool, samples: Samples
    ) -> Tensors:
        """Return the tensors these clients are tested with."""
        if not self.method.keeps_memory:
            return self.method.personalize(self.model, download, samples.log_priors, memory)
        generator = torch_rng(self.config.seed, "test", clients[0], download.round)
        guard = self.protection.guard(clients[0], "test")
        return self.method.for_test(self._visit(clients[0], generator, guard), download, memory, final)

    # Their images

    def test_size(self, client: int) -> int:
        """Return the number of images the client is tested on."""
        return len(self._parts(self.clients[client])[1])

    def test_samples(self, clients: Sequence[int]) -> Samples:
        """Return the test images of some clients, each with its own client's priors."""
        counts = torch.tensor([len(self._parts(self.clients[client])[1]) for client in clients])
        priors = torch.stack([self.log_priors(client) for client in clients]).repeat_interleave(counts, 0)
        labels = np.concatenate([self.dataset.labels[self._parts(self.clients[c])[1]] for c in clients])
        view = self.cache.view([2 * client + 1 for client in clients])
        return Samples(view, torch.from_numpy(labels), priors, self.stop.check)

    def _check(self, deadline: float | None) -> None:
        self.stop.check()
        if deadline is not None and time.monotonic() > deadline:
            raise ClientError(f"it took longer than client_timeout={self.config.client_timeout} s")

    def log_priors(self, client: int) -> Tensor:
        """Return the log of the client's class priors, smoothed as the method asks."""
        priors = torch.from_numpy(self.clients[client].class_priors)
        share = self.method.prior_smoothing
        return ((1 - share) * priors + share / len(priors)).log().float()

    def _visit(
        self, client: int, generator: torch.Generator, guard: Guard, deadline: float | None = None
    ) -> Visit:
        augment = flip_and_crop if self.config.data.augment == "flip+crop" else None
        samples = Samples(
            self.cache.view([2 * client], augment),
            torch.from_numpy(self.clients[client].train_labels),
            self.log_priors(client),
            partial(self._check, deadline),
        )
        config = self.config
        chunk, class_sums = config.evaluation.chunk, guard.class_sums
        return Visit(client, self.model, samples, config.training, generator, chunk, class_sums)
