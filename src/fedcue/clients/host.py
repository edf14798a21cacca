"""What a client does, in any process and on any machine: warm up, train, be tested."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from fedcue.clients.priors import concentration_of, estimate_priors
from fedcue.config.settings import RunConfig
from fedcue.data.clients import ClientData, Pool
from fedcue.data.dataset import Indices
from fedcue.data.pixels import flip_and_crop
from fedcue.errors import ClientError
from fedcue.machine import StopFlag
from fedcue.methods.client import Client
from fedcue.model.prompted import PromptedViT
from fedcue.privacy.guard import Guard, Protection
from fedcue.rng import rng, torch_rng
from fedcue.train.batches import FrozenValues, Samples
from fedcue.train.sgd import Fit, fit
from fedcue.types import ClientMemory, Download, Sizes, Tensors, Update, moved


class FrozenImages(Protocol):
    """The frozen backbone's values of every image that a client here uses."""

    @property
    def model(self) -> PromptedViT:
        """The frozen backbone."""

    def view(
        self, images: Indices, augment: Callable[[Tensor, Generator], Tensor] | None = None
    ) -> FrozenValues:
        """Return the values of some images, in the order given."""


@dataclass(frozen=True)
class Prediction:
    """The test images of some clients, with their labels and predicted classes."""

    images: NDArray[np.int64]
    clients: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]


@dataclass(frozen=True)
class Visit:
    """A client that trains in a round: its images, what it was sent, what guards what leaves it."""

    at_work: Client
    images: Indices
    sent: Tensors
    """On the device."""
    download: Download
    guard: Guard


@dataclass(eq=False)
class Host:
    """Some clients at work on one machine: all of them in a simulation, one's own in a deployment."""

    config: RunConfig
    clients: Sequence[ClientData]
    places: Mapping[int, int] | Sequence[int]
    """From a client's id to its place in ``clients``."""
    frozen: FrozenImages
    sizes: Sizes
    protection: Protection
    loop: Fit = fit
    counted: Sequence[int] = ()
    """Clients whose class counts may be known to all, for the concentration of class mixes."""
    stop: StopFlag = field(default_factory=StopFlag)

    def __post_init__(self) -> None:
        self.method = self.config.method
        self.table = self.protection.table
        self.device = self.frozen.model.device

    # What a client does

    def warm_up(self, client: int) -> Update | None:
        """Return the client's reply before round 0, if the method asks for one."""
        guard = self.protection.guard(client, "warm up")
        generator = torch_rng(self.config.seed, "warm up", client)
        at_work = self._at_work(client, generator, guard, time.monotonic())
        reply = self.method.warm_up(at_work)
        if not reply:
            return None
        update = Update(client, len(at_work.samples), moved(reply, "cpu"))
        check_finite(update)
        return guard.leave(update, {})

    def train(self, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train one client for one round; return what leaves it and what it remembers."""
        visit = self.arrive(download, memory)
        return self.leave(visit, self.method.update(visit.at_work, visit.sent))

    def arrive(self, download: Download, memory: ClientMemory) -> Visit:
        """Begin a visit of a round."""
        client, round_ = download.client, download.round
        generator = torch_rng(self.config.seed, "client", client, round_)
        guard = self.protection.guard(client, round_)
        own = self.client(client)
        if self.config.pooled:
            own = self._pool.drawn(self.config.clients_per_round, rng(self.config.seed, "pool", round_))
        at_work = self._at_work(client, generator, guard, time.monotonic(), round_, memory, own)
        return Visit(at_work, own.train, moved(download.tensors, self.device), download, guard)

    def leave(self, visit: Visit, update: Update) -> tuple[Update, ClientMemory]:
        """End a visit: return what leaves the client and what it remembers."""
        kept = ClientMemory(moved(update.kept, "cpu"))
        update = replace(update, tensors=moved(update.tensors, "cpu"), kept={})
        check_finite(update)
        return visit.guard.leave(update, visit.download.tensors), kept

    def test(
        self, clients: Sequence[int], download: Download, memory: ClientMemory, final: bool
    ) -> Prediction:
        """Test some clients together (one at a time where the method keeps memories)."""
        predicted, began = [], time.monotonic()
        samples, tensors = self.prepare_test(clients, download, memory, final, began)
        with torch.no_grad():
            for batch in samples.batches(self.config.evaluation.chunk):
                self._check(began)
                predicted.append(self.method.predict(tensors, batch).argmax(1).cpu())
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
        began: float | None = None,
    ) -> tuple[Samples, Tensors]:
        """Return the test images of some clients, under the priors asked for, and their tensors."""
        samples, kind = self._test_samples(clients), self.config.evaluation.priors
        if kind != "labels":
            even = torch.full_like(samples.log_priors, -math.log(self.sizes.classes))
            samples = replace(samples, log_priors=even)
        tensors = self._for_test(clients, download, memory, final, samples, began)
        if kind == "em":
            samples = replace(samples, log_priors=self._estimated_priors(clients, samples, tensors))
            if not self.table.kept:  # the others adapt to training images, which are the same
                tensors = self._for_test(clients, download, memory, final, samples, began)
        return samples, tensors

    @torch.no_grad()
    def _estimated_priors(self, clients: Sequence[int], samples: Samples, tensors: Tensors) -> Tensor:
        """Estimate each client's priors from what the method says of its images under even priors."""
        options = self.config.evaluation
        batches = samples.batches(options.chunk)
        logits = torch.cat([self.method.logits(tensors, batch).cpu() for batch in batches])
        parts = logits.split([self.test_size(client) for client in clients])
        priors = []
        for client, own in zip(clients, parts, strict=True):
            labelled = self.client(client).class_counts.clip(max=options.labelled)
            found = estimate_priors(own.double(), self.concentration, options.temperature, labelled)
            priors.append(torch.from_numpy(found).log().float().expand(len(own), -1))
        return torch.cat(priors).to(self.device)

    def _for_test(
        self,
        clients: Sequence[int],
        download: Download,
        memory: ClientMemory,
        final: bool,
        samples: Samples,
        began: float | None,
    ) -> Tensors:
        """Return the tensors these clients are tested with."""
        generator = torch_rng(self.config.seed, "test", clients[0], download.round)
        guard = self.protection.guard(clients[0], "test")
        at_work = self._at_work(clients[0], generator, guard, began, download.round, memory)
        if not self.table.kept:  # several clients at once: nothing depends on one of them but the priors
            at_work = replace(at_work, log_priors=samples.log_priors)
        return self.method.for_test(at_work, moved(download.tensors, self.device), final)

    def _at_work(
        self,
        client: int,
        generator: Generator,
        guard: Guard,
        began: float | None = None,
        finished_rounds: int = 0,
        memory: ClientMemory | None = None,
        own: ClientData | None = None,
    ) -> Client:
        """Return the client as its method sees it during a visit, with its own images or those given."""
        own, config = own or self.client(client), self.config
        priors = self.log_priors(own).to(self.device)
        augment = flip_and_crop if config.data.augment == "flip+crop" else None
        samples = Samples(
            self.frozen.view(own.train, augment),
            torch.from_numpy(own.train_labels),
            priors,
            partial(self._check, began),
        )
        return Client(
            client,
            samples,
            priors,
            self.table,
            self.sizes,
            config.training,
            generator,
            config.seed,
            finished_rounds,
            {} if memory is None else moved(memory.tensors, self.device),
            config.evaluation.chunk,
            guard.class_sums,
            guard.privacy.hide_priors,
            train=self.loop,
        )

    # Their images

    def client(self, client: int) -> ClientData:
        """Return the client with this id."""
        return self.clients[self.places[client]]

    def test_images(self, client: int) -> NDArray[np.int64]:
        """Return the indices of the images the client is tested on."""
        return self.client(client).tested(self.config.evaluation.on)[0]

    def test_size(self, client: int) -> int:
        """Return the number of images the client is tested on."""
        return len(self.test_images(client))

    def log_priors(self, own: ClientData) -> Tensor:
        """Return the log of a client's class priors, smoothed as the method asks."""
        share, priors = self.method.prior_smoothing, torch.from_numpy(own.class_priors)
        return ((1 - share) * priors + share / len(priors)).log().float()

    @cached_property
    def concentration(self) -> float:
        """How concentrated class mixes are, as far as that may be known; learned when it is asked for."""
        return concentration_of(self.client(client).class_counts for client in self.counted)

    @cached_property
    def _pool(self) -> Pool:
        return Pool.of(self.clients)

    def _test_samples(self, clients: Sequence[int]) -> Samples:
        """Return the test images of some clients, each with its own client's priors."""
        parts = [self.client(client).tested(self.config.evaluation.on) for client in clients]
        counts = torch.tensor([len(images) for images, _ in parts])
        priors = torch.stack([self.log_priors(self.client(client)) for client in clients]).repeat_interleave(
            counts, 0
        )
        labels = np.concatenate([labels for _, labels in parts])
        view = self.frozen.view(np.concatenate([images for images, _ in parts]))
        return Samples(view, torch.from_numpy(labels), priors.to(self.device), self.stop.check)

    def _check(self, began: float | None) -> None:
        """Stop work if the run is to stop, or if it has taken longer than a client may."""
        self.stop.check()
        limit = self.config.client_timeout
        if began is not None and limit is not None and time.monotonic() > began + limit:
            raise ClientError(f"it took longer than client_timeout={limit} s")


def check_finite(update: Update) -> None:
    """Refuse an update that holds something that is not a number."""
    for name, tensor in update.tensors.items():
        if not torch.isfinite(tensor).all():
            raise ClientError(f"its update of {name} is not finite")
