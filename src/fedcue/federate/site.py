"""The clients of one machine: their images, the frozen model, and what a client does."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcue.data.client import ClientData
from fedcue.data.dataset import Dataset
from fedcue.data.images import flip_and_crop
from fedcue.data.store import PixelStore
from fedcue.errors import ClientError, Interrupted
from fedcue.evaluate.priors import estimate_priors
from fedcue.federate.interrupt import StopFlag
from fedcue.federate.protection import Guard, Protection
from fedcue.methods.base import Method, Visit
from fedcue.model.frozen import FrozenCache
from fedcue.model.prompted import PromptedViT
from fedcue.rng import torch_rng
from fedcue.settings import RunConfig
from fedcue.train.samples import Samples
from fedcue.types import ClientMemory, Download, Setting, Tensors, Update, moved


@dataclass(frozen=True)
class Prediction:
    """The test images of some clients, what they are and what the model takes them for."""

    images: NDArray[np.int64]
    clients: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]


@dataclass(eq=False)
class Site:
    """Some clients at work on one machine: all of them in a simulation, one's own in a deployment."""

    config: RunConfig
    dataset: Dataset
    clients: Sequence[ClientData]
    pixels: PixelStore
    model: PromptedViT
    setting: Setting
    protection: Protection

    def __post_init__(self) -> None:
        self.method: Method = self.config.method
        self.stop = StopFlag()

    @cached_property
    def places(self) -> Mapping[int, int] | Sequence[int]:
        """From a client's id to its place in ``clients``."""
        return {client.id: place for place, client in enumerate(self.clients)}

    @cached_property
    def cache(self) -> FrozenCache:
        """The frozen backbone's values of every image used here."""
        return FrozenCache(
            self.model,
            self.pixels.__getitem__,
            self._groups(),
            self.method.first_block(self.setting),
            self.method.bare_blocks(self.setting),
            self.config.cache.limit_mb * 2**20,
            self.config.cache.folder,
        )

    def _groups(self) -> Sequence[NDArray[np.int64]]:
        """Return the images whose frozen values are computed together: what a client trains or tests on."""
        return [part for client in self.clients for part in self._parts(client)]

    # What a client does, in whatever process

    def warm_up(self, client: int) -> Update | None:
        """Return the client's reply before round 0."""
        guard = self.protection.guard(client, "warm up")
        generator = torch_rng(self.config.seed, "warm up", client)
        with _at_a_client():
            reply = self.method.warm_up(self._visit(client, generator, guard, self._deadline()))
        if reply is None:
            return None
        _check_finite(reply)
        return guard.leave(reply, {})

    def train(self, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train one client for one round."""
        client = download.client
        generator = torch_rng(self.config.seed, "client", client, download.round)
        guard = self.protection.guard(client, download.round)
        with _at_a_client():
            visit = self._visit(client, generator, guard, self._deadline())
            update, memory = self.method.update(visit, *self._placed(download, memory))
        update = replace(update, tensors=moved(update.tensors, "cpu"))
        memory = ClientMemory(moved(memory.tensors, "cpu"))
        _check_finite(update)
        return guard.leave(update, download.tensors), memory

    def test(
        self, clients: Sequence[int], download: Download, memory: ClientMemory, final: bool
    ) -> Prediction:
        """Test some clients together (one at a time where the method keeps memories)."""
        predicted, deadline = [], self._deadline()
        with _at_a_client():
            samples, tensors = self.prepare_test(clients, download, memory, final, deadline)
            with torch.no_grad():
                for batch in samples.batches(self.config.evaluation.chunk):
                    self._check(deadline)
                    predicted.append(self.method.predict(self.model, tensors, batch).argmax(1).cpu())
        return Prediction(
            np.concatenate([self.test_images(client) for client in clients]),
            np.concatenate([np.full(self.test_size(client), client) for client in clients]),
            samples.labels.numpy(),
            torch.cat(predicted).numpy(),
        )

    def prepare_test(
        self,
        clients: Sequence[int],
        download: Download,
        memory: ClientMemory,
        final: bool = False,
        deadline: float | None = None,
    ) -> tuple[Samples, Tensors]:
        """Return the test images of some clients, under the priors asked for, and their tensors."""
        samples, kind = self.test_samples(clients), self.config.evaluation.priors
        if kind != "labels":
            even = -math.log(self.setting.classes)
            samples = replace(samples, log_priors=torch.full_like(samples.log_priors, even))
        tensors = self._for_test(clients, download, memory, final, samples, deadline)
        if kind == "em":
            samples = replace(samples, log_priors=self._estimated_priors(clients, samples, tensors))
            if not self.method.keeps_memory:  # the others adapt to training images, which are the same
                tensors = self._for_test(clients, download, memory, final, samples, deadline)
        return samples, tensors

    @torch.no_grad()
    def _estimated_priors(self, clients: Sequence[int], samples: Samples, tensors: Tensors) -> Tensor:
        """Estimate each client's priors from what the method says of its images under even priors."""
        batches = samples.batches(self.config.evaluation.chunk)
        logits = torch.cat([self.method.logits(self.model, tensors, batch).cpu() for batch in batches])
        parts = logits.split([self.test_size(client) for client in clients])
        priors = [estimate_priors(own).log().float().expand(len(own), -1) for own in parts]
        return torch.cat(priors).to(self.model.device)

    def _for_test(
        self,
        clients: Sequence[int],
        download: Download,
        memory: ClientMemory,
        final: bool,
        samples: Samples,
        deadline: float | None,
    ) -> Tensors:
        """Return the tensors these clients are tested with."""
        download, memory = self._placed(download, memory)
        if not self.method.keeps_memory:
            return self.method.personalize(self.model, download, samples.log_priors, memory)
        generator = torch_rng(self.config.seed, "test", clients[0], download.round)
        guard = self.protection.guard(clients[0], "test")
        visit = self._visit(clients[0], generator, guard, deadline)
        return self.method.for_test(visit, download, memory, final)

    def _placed(self, download: Download, memory: ClientMemory) -> tuple[Download, ClientMemory]:
        """Return what a client has and gets, on the device it works on."""
        device = self.model.device
        here = ClientMemory(moved(memory.tensors, device))
        return replace(download, tensors=moved(download.tensors, device)), here

    # Their images

    def client(self, client: int) -> ClientData:
        """Return the client with this id."""
        return self.clients[self.places[client]]

    def test_images(self, client: int) -> NDArray[np.int64]:
        """Return the indices of the images the client is tested on."""
        return self._parts(self.client(client))[1]

    def test_size(self, client: int) -> int:
        """Return the number of images the client is tested on."""
        return len(self.test_images(client))

    def test_samples(self, clients: Sequence[int]) -> Samples:
        """Return the test images of some clients, each with its own client's priors."""
        counts = torch.tensor([self.test_size(client) for client in clients])
        priors = torch.stack([self.log_priors(client) for client in clients]).repeat_interleave(counts, 0)
        labels = np.concatenate([self.dataset.labels[self.test_images(client)] for client in clients])
        view = self.cache.view(np.concatenate([self.test_images(client) for client in clients]))
        return Samples(view, torch.from_numpy(labels), priors.to(self.model.device), self.stop.check)

    def _parts(self, client: ClientData) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        on_validation = self.config.evaluation.on == "validation"
        return client.train, client.validation if on_validation else client.test

    def _deadline(self) -> float | None:
        limit = self.config.client_timeout
        return None if limit is None else time.monotonic() + limit

    def _check(self, deadline: float | None) -> None:
        self.stop.check()
        if deadline is not None and time.monotonic() > deadline:
            raise ClientError(f"it took longer than client_timeout={self.config.client_timeout} s")

    def log_priors(self, client: int) -> Tensor:
        """Return the log of the client's class priors, smoothed as the method asks."""
        priors = torch.from_numpy(self.client(client).class_priors)
        share = self.method.prior_smoothing
        return ((1 - share) * priors + share / len(priors)).log().float()

    def _visit(
        self, client: int, generator: torch.Generator, guard: Guard, deadline: float | None = None
    ) -> Visit:
        augment = flip_and_crop if self.config.data.augment == "flip+crop" else None
        own = self.client(client)
        samples = Samples(
            self.cache.view(own.train, augment),
            torch.from_numpy(own.train_labels),
            self.log_priors(client).to(self.model.device),
            partial(self._check, deadline),
        )
        config = self.config
        chunk, hide_priors = config.evaluation.chunk, guard.privacy.hide_priors
        common = (client, self.model, samples, config.training, generator)
        return Visit(*common, chunk, guard.class_sums, hide_priors)


@contextmanager
def _at_a_client() -> Iterator[None]:
    """Name whatever goes wrong: one client's trouble must not end the run."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        raise ClientError(f"{type(error).__name__}: {error}") from error


def _check_finite(update: Update) -> None:
    for name, tensor in update.tensors.items():
        if not torch.isfinite(tensor).all():
            raise ClientError(f"its update of {name} is not finite")
