"""A federation small enough to run every method in a moment: a random ViT and coloured noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedcue.methods.base import Method, Visit
from fedcue.model.prompted import Prefix, PromptedViT, no_prompts
from fedcue.model.vit import Architecture, VisionTransformer
from fedcue.rng import torch_rng
from fedcue.train.settings import Training
from fedcue.train.batches import Samples
from fedcue.types import ClientMemory, ServerState, Sizes, Update

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
    """The frozen values of a few images, computed once."""

    def __init__(self, model: PromptedViT, pixels: Tensor, block: int, bare_blocks: tuple[int, ...]) -> None:
        backbone = model.backbone
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

    def prefix(self, rows: Tensor, generator: torch.Generator | None = None) -> Prefix:
        return self.whole[rows]

    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        return self.bare[rows]


@dataclass
class TinyFederation:
    """Four clients with two classes each; the last client is never sampled."""

    method: Method
    model: PromptedViT = field(default_factory=random_vit)
    training: Training = field(default_factory=lambda: Training(lr=0.1, epochs=2, batch_size=8))
    images: int = 16
    seed: int = 0

    @property
    def setting(self) -> Setting:
        shape = self.model.architecture
        return Setting(CLASSES, shape.width, shape.depth, shape.patch, CLIENTS)

    def samples(self, client: int) -> Samples:
        """Return a client's images: the colour tells the class."""
        generator = torch.Generator().manual_seed(100 + client)
        labels = (torch.arange(self.images) % 2 + client) % CLASSES
        colours = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(7))
        pixels = colours[labels] + 0.3 * torch.randn(self.images, 3, 8, 8, generator=generator)
        blocks = self.method.first_block(self.setting), self.method.bare_blocks(self.setting)
        priors = torch.bincount(labels, minlength=CLASSES) / self.images
        share = self.method.prior_smoothing
        log_priors = ((1 - share) * priors + share / CLASSES).log()
        return Samples(Images(self.model, pixels, *blocks), labels, log_priors)

    def visit(self, client: int, finished_rounds: int = 0, stream: str = "client") -> Visit:
        generator = torch_rng(self.seed, stream, client, finished_rounds)
        return Visit(client, self.model, self.samples(client), self.training, generator)

    def start(self) -> ServerState:
        replies = [self.method.warm_up(self.visit(client)) for client in range(HELD_OUT)]
        return self.method.start(self.setting, self.seed, [reply for reply in replies if reply is not None])

    def update(
        self, state: ServerState, client: int, memory: ClientMemory | None = None
    ) -> tuple[Update, ClientMemory]:
        download = self.method.download(state, client, self.seed)
        visit = self.visit(client, state.round)
        return self.method.update(visit, download, memory or ClientMemory())

    def run(self, rounds: int, sampled: Sequence[int] = (0, 1, 2)) -> Run:
        return Run(self, self.start()).more(rounds, sampled)


@dataclass
class Run:
    """The states, updates and memories of some rounds."""

    federation: TinyFederation
    state: ServerState
    memories: dict[int, ClientMemory] = field(default_factory=dict)
    updates: list[list[Update]] = field(default_factory=list)

    def more(self, rounds: int, sampled: Sequence[int] = (0, 1, 2)) -> Run:
        for _ in range(rounds):
            self.updates.append([])
            for client in sampled:
                update, memory = self.federation.update(self.state, client, self.memories.get(client))
                self.updates[-1].append(update)
                self.memories[client] = memory
            self.state = self.federation.method.aggregate(self.state, self.updates[-1])
        return self

    def loss(self, finished_rounds: int) -> float:
        losses = [update.loss for update in self.updates[finished_rounds]]
        return sum(loss for loss in losses if loss is not None) / len(losses)

    def predict(self, client: int, final: bool = False) -> Tensor:
        """Return the logits of a client's images as it would decide with them."""
        federation, method = self.federation, self.federation.method
        visit = federation.visit(client, self.state.round, "test")
        download = method.download(self.state, client, federation.seed)
        tensors = method.for_test(visit, download, self.memories.get(client, ClientMemory()), final)
        with torch.no_grad():
            batches = federation.samples(client).batches(100)
            return torch.cat([method.predict(federation.model, tensors, batch) for batch in batches])

    def accuracy(self, client: int, final: bool = False) -> float:
        labels = self.federation.samples(client).labels
        return (self.predict(client, final).argmax(1) == labels).float().mean().item()
