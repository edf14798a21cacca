"""A federation small enough to run every method in a moment: a random ViT and coloured noise.

Everything but images and backbone is the package's own: clients, roster, host, rounds, run folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Generator, Tensor

from fedcue.aggregate.mean import PlainAdding, Summing, Sums
from fedcue.clients.federation import Federation, describe
from fedcue.clients.host import Host
from fedcue.config.layers import load
from fedcue.config.settings import RunConfig
from fedcue.data import Dataset, Partition, make_clients
from fedcue.methods.base import Method
from fedcue.methods.client import Client
from fedcue.model.prompted import Prefix, PromptedViT, no_prompts
from fedcue.model.vit import Architecture, VisionTransformer
from fedcue.privacy.budget import Schedule
from fedcue.record.folder import RunFolder
from fedcue.rng import torch_rng
from fedcue.rounds.engine import Failure, Insight
from fedcue.rounds.executor import Executor
from fedcue.rounds.loop import Run
from fedcue.rounds.observers import Silent
from fedcue.rounds.result import Result
from fedcue.train.batches import Batch, Samples
from fedcue.train.settings import Training
from fedcue.types import ClientMemory, Download, ServerState, Sizes, Update

TINY = Architecture(width=32, depth=8, heads=2, patch=4, image_size=8, hidden=64)
CLASSES, CLIENTS, HELD_OUT = 4, 4, 3


def random_vit(architecture: Architecture = TINY, seed: int = 0) -> PromptedViT:
    """Return a frozen ViT whose every parameter is random and about as large as a trained one's."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = VisionTransformer(architecture)
        for name, parameter in backbone.named_parameters():
            scale = 0.3 if name in ("cls_token", "pos_embed") else 0.05
            parameter.data += scale * torch.randn(parameter.shape)
    return PromptedViT(backbone.eval().requires_grad_(False))


class Images:
    """The frozen values of a few images, computed once: what ``FrozenCache`` is for files."""

    def __init__(self, model: PromptedViT, pixels: Tensor, block: int, bare_blocks: tuple[int, ...]) -> None:
        self.model, backbone = model, model.backbone
        with torch.no_grad():
            embedded = backbone.embed(pixels.to(backbone.cls_token.dtype))
            self.start = Prefix(0, embedded, backbone.blocks[0].project(embedded))
            self.bare = (
                model.cls_tokens(self.start, no_prompts, bare_blocks) if bare_blocks else embedded[:, :0]
            )
            self.whole = self.start
            if block == model.depth:
                self.whole = Prefix(block, model.features(self.start, no_prompts))
        assert block in (0, model.depth), "prompts of the tested methods start at block 0 or nowhere"

    def view(
        self, images: np.ndarray, augment: Callable[[Tensor, Generator], Tensor] | None = None
    ) -> ImagesView:
        assert augment is None, "there are no pixels here to augment"
        return ImagesView(self, torch.from_numpy(images))


@dataclass(frozen=True)
class ImagesView:
    """Some of the images, in the order given."""

    images: Images
    indices: Tensor

    @property
    def model(self) -> PromptedViT:
        return self.images.model

    def prefix(self, rows: Tensor, generator: Generator | None = None) -> Prefix:
        return self.images.whole[self.indices[rows]]

    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        return self.images.bare[self.indices[rows]]


class NoPixels:
    """Pixels nobody asks for: of none it is known that it could not be read."""

    bad = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class GivenSchedule(Schedule):
    """Draws the clients it was given, in every round."""

    given: tuple[int, ...] = ()

    def drawn(self, finished_rounds: int, attempt: int = 0) -> list[int]:
        return list(self.given)


class Recorder(Executor):
    """The real executor in this process, which keeps what passes through it."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation, workers=1)
        self.replies: list[Update] = []
        self.updates: dict[int, list[Update]] = {}
        self.state: ServerState | None = None

    def warm_up(self, clients: Iterable[int]) -> Iterator[Update | Failure]:
        for reply in super().warm_up(clients):
            if isinstance(reply, Update):
                self.replies.append(reply)
            yield reply

    def train(
        self, jobs: Iterable[tuple[Download, ClientMemory]]
    ) -> Iterator[tuple[Update, ClientMemory] | Failure]:
        for download, memory in jobs:
            for outcome in super().train([(download, memory)]):
                if not isinstance(outcome, Failure):
                    self.updates.setdefault(download.round, []).append(outcome[0])
                yield outcome

    def insight(self, state: ServerState, *rest: object) -> Insight:
        self.state = state
        return super().insight(state, *rest)


@dataclass
class TinyFederation:
    """Four clients with two classes each, tested on their own images; the last client never trains."""

    method: Method
    model: PromptedViT = field(default_factory=random_vit)
    training: Training = field(default_factory=lambda: Training(lr=0.1, epochs=2, batch_size=8))
    images: int = 16
    seed: int = 0
    settings: Sequence[str] = ()
    """Further settings, such as ``transport.name=sparse``."""
    labels: Sequence[Sequence[int]] | None = None
    """Each client's training labels, if they are not to be those of two classes."""
    test_labels: Sequence[Sequence[int]] | None = None
    """Each client's test labels, if it is not to be tested on its training images."""
    domains: Sequence[str] = ("",) * CLIENTS
    """Each client's domain."""
    host_kind: type[Host] = Host

    def own_labels(self, client: int) -> np.ndarray:
        """Return a client's training labels."""
        if self.labels is not None:
            return np.array(self.labels[client])
        return (np.arange(self.images) % 2 + client) % CLASSES

    @cached_property
    def dataset(self) -> Dataset:
        train = [self.own_labels(client) for client in range(CLIENTS)]
        test = [] if self.test_labels is None else [np.array(own) for own in self.test_labels]
        labels, classes = np.concatenate([*train, *test]), tuple(f"class {c}" for c in range(CLASSES))
        is_test = np.arange(len(labels)) >= sum(map(len, train))
        return Dataset("coloured noise", classes, labels, is_test, images=labels)  # whose pixels are below

    @cached_property
    def partition(self) -> Partition:
        """Give each client its images, which lie one client's after the other's."""
        sizes = [len(self.own_labels(client)) for client in range(CLIENTS)]
        sizes += [] if self.test_labels is None else [len(own) for own in self.test_labels]
        parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        train, test = parts[:CLIENTS], parts[CLIENTS:] or parts[:CLIENTS]
        return Partition(train, test, [f"client-{c}" for c in range(CLIENTS)], list(self.domains))

    @cached_property
    def pixels(self) -> Tensor:
        """Return the images ``[n, 3, 8, 8]``: the colour tells the class."""
        shape, labels = (3, 8, 8), torch.from_numpy(self.dataset.labels)
        colours = torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(7))
        noise = [
            torch.randn(len(own), *shape, generator=torch.Generator().manual_seed(100 + number))
            for number, own in enumerate([*self.partition.train, *self.partition.test])
        ]
        return colours[labels] + 0.3 * torch.cat(noise)[: len(labels)]

    def config(self, rounds: int = 1) -> RunConfig:
        """Return the configuration; data and partition stand for those that are made here."""
        quick = ["evaluation.every=0", "evaluation.prototype_sample=0", "evaluation.cls_sample=0"]
        few = ["clients_per_round=3", f"heldout=[{HELD_OUT}]", "workers=1", "snapshots=[]"]
        config = load("default", [f"seed={self.seed}", *quick, *few, *self.settings])
        return config.model_copy(update={"method": self.method, "training": self.training, "rounds": rounds})

    def made(self, rounds: int = 1, sampled: Sequence[int] | None = None) -> Federation:
        """Return the real federation for a run of so many rounds, in which these clients are drawn."""
        config = self.config(rounds)
        clients = make_clients(self.dataset, self.partition, heldout=config.heldout, seed=self.seed)
        roster = describe(config, self.dataset, self.model.architecture, clients)
        if sampled is not None:
            roster.schedule = GivenSchedule(**vars(roster.schedule), given=tuple(sampled))
        host = self.host_kind(
            config, clients, range(len(clients)), self.frozen, roster.sizes, roster.protection
        )
        return Federation(config, self.dataset, clients, NoPixels(), self.model, roster, host)

    @cached_property
    def frozen(self) -> Images:
        return Images(
            self.model, self.pixels, self.method.first_block(self.sizes), self.method.bare_blocks(self.sizes)
        )

    @property
    def sizes(self) -> Sizes:
        shape = self.model.architecture
        return Sizes(CLASSES, shape.width, shape.depth, shape.patch, CLIENTS)

    @cached_property
    def federation(self) -> Federation:
        """The real federation, for a step without a run."""
        return self.made()

    @property
    def host(self) -> Host:
        """Its clients."""
        return self.federation.host

    # One step at a time

    def client(self, client: int, finished_rounds: int = 0, memory: ClientMemory | None = None) -> Client:
        """Return a client as its method sees it in a visit."""
        generator = torch_rng(self.seed, "client", client, finished_rounds)
        guard = self.host.protection.guard(client, finished_rounds)
        return self.host._at_work(client, generator, guard, None, finished_rounds, memory)

    def samples(self, client: int) -> Samples:
        """Return a client's images."""
        return self.client(client).samples

    def batch(self, client: int, size: int = 1000) -> Batch:
        """Return the first of a client's images."""
        return next(iter(self.samples(client).batches(size)))

    def sent(self, state: ServerState, client: int) -> dict[str, Tensor]:
        """Return the tensors that a client is sent."""
        return dict(self.method.download(state, client, self.sizes, self.seed))

    def personal(
        self, state: ServerState, client: int, memory: ClientMemory | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors that a client predicts with."""
        return dict(self.method.personal(self.client(client, state.round, memory), self.sent(state, client)))

    def start(self) -> ServerState:
        """Return the state before round 0."""
        return self.run(0).state

    def update(
        self, state: ServerState, client: int, memory: ClientMemory | None = None
    ) -> tuple[Update, ClientMemory]:
        """Let a client train."""
        download = Download(client, state.round, self.sent(state, client))
        return self.host.train(download, memory or ClientMemory())

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """Return the state that the server makes of these updates."""
        return self.method.aggregate(state, added(self.method, self.sizes, updates))

    def run(self, rounds: int, sampled: Sequence[int] | None = None) -> TinyRun:
        """Do a whole run; all clients but the last are drawn in every round, if none are given."""
        return TinyRun(self).more(rounds, sampled)


def added(method: Method, sizes: Sizes, updates: Iterable[Update]) -> Sums:
    """Return the sums of some updates, as a round without protection makes them."""
    adding = PlainAdding(Summing(method.table(sizes), method.weighting, method.added))
    for update in updates:
        adding.add(update)
    return adding.sums()


@dataclass
class TinyRun:
    """The last state, the updates and the memories of a finished run, which can go on."""

    tiny: TinyFederation
    memories: dict[int, ClientMemory] = field(default_factory=dict)
    updates: list[list[Update]] = field(default_factory=list)
    replies: list[Update] = field(default_factory=list)
    state: ServerState = field(default_factory=lambda: ServerState(0, {}))
    folder: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)
    result: Result | None = None

    def more(self, rounds: int, sampled: Sequence[int] | None = None) -> TinyRun:
        """Do so many rounds more: resume the run with a larger number of them."""
        federation = self.tiny.made(self.state.round + rounds, sampled)
        folder = RunFolder(Path(self.folder.name) / "run")
        resume = self.result is not None
        folder.open(resume=resume)
        try:
            with Recorder(federation) as recorder:
                run = Run(recorder, folder, Silent())
                self.result = run.complete(resume)
        finally:
            folder.close()
        self.memories, self.state = run.memories, recorder.state
        self.replies += recorder.replies
        self.updates += [recorder.updates[number] for number in sorted(recorder.updates)]
        return self

    def loss(self, finished_rounds: int) -> float:
        losses = [update.loss for update in self.updates[finished_rounds]]
        return sum(loss for loss in losses if loss is not None) / len(losses)

    def for_test(self, client: int, final: bool = False) -> tuple[Samples, dict[str, Tensor]]:
        """Return a client's images and what it is tested with."""
        tiny = self.tiny
        download = Download(client, self.state.round, tiny.sent(self.state, client))
        memory = self.memories.get(client, ClientMemory())
        samples, tensors = tiny.host.prepare_test([client], download, memory, final)
        return samples, dict(tensors)

    def predict(self, client: int, final: bool = False) -> Tensor:
        """Return the logits of a client's images as it would decide with them."""
        samples, tensors = self.for_test(client, final)
        with torch.no_grad():
            return torch.cat([self.tiny.method.predict(tensors, batch) for batch in samples.batches(100)])

    def accuracy(self, client: int, final: bool = False) -> float:
        labels = torch.from_numpy(self.tiny.host.client(client).test_labels)
        return (self.predict(client, final).argmax(1) == labels).float().mean().item()
