"""One visit and one test of a typical client on a counting backbone, from which a whole run follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from fedcue.federate.counting import Work
from fedcue.federate.outline import Outline
from fedcue.federate.sampling import sample_clients, warm_start_clients
from fedcue.federate.transport import Transport
from fedcue.model.vit import VisionTransformer
from fedcue.types import ClientMemory, Tensors, count_bytes, count_floats


@dataclass(frozen=True)
class Travel:
    """What a client receives and sends in one visit, and all of it over the run."""

    download_floats: int
    upload_floats: int
    download_bytes: int
    upload_bytes: int
    round_bytes: int
    warm_up_bytes: int
    total_floats: int
    total_bytes: int


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of one image in one epoch by the literature's formulas, and of the run as it is done."""

    image_steps: int
    evaluations: int
    forward_gmac: float
    backward_gmac: float
    formula_pflop: float
    pflop: dict[str, float]
    """By what it is for: training, other passes at the clients, tests, values computed once."""

    @property
    def total_pflop(self) -> float:
        """What the whole run computes."""
        return sum(self.pflop.values())


@dataclass(frozen=True)
class Memory:
    """Bytes of what a run keeps at hand."""

    weights: int
    pixels: int
    pixels_in_file: bool
    frozen: int
    frozen_level: str
    client_memories: int


class Trial:
    """What a typical client does, counted, and who is visited and tested how often."""

    def __init__(self, outline: Outline) -> None:
        self.outline, self.config, self.method = outline, outline.config, outline.method
        trainees = outline.training_clients
        self.sampled = [sample_clients(trainees, self.config, number) for number in range(self.config.rounds)]
        self.visited = {client for clients in self.sampled for client in clients}
        self.asked = warm_start_clients(trainees, self.config.warm_start, self.config.seed)
        listed, heldout = outline.roster.listed, outline.roster.heldout
        self.tested = listed[self.method.supports_heldout | ~heldout[listed]].tolist()
        looked_at = some(trainees.tolist())
        self.typical: int = sorted(looked_at, key=outline.class_count)[len(looked_at) // 2]
        self._try()

    def _try(self) -> None:
        """Let the typical client do everything once."""
        outline, client, seed = self.outline, self.typical, self.config.seed
        classes, images = outline.class_count(client), outline.test_size(client)
        transport = Transport(self.config)
        with outline.meter.reading(classes) as self.warm:  # a visit of the outline has an image per class
            reply = outline.warm_up(client)
        self.replied: Tensors = {}
        if reply is not None:
            transport.learn(reply)
            self.replied = transport.upload(reply, {})[0].tensors
        state = self.method.start(outline.setting, seed, [] if reply is None else [reply])
        download = self.method.download(state, client, seed)
        self.sent = transport.download(download)[0].tensors
        with outline.meter.reading(classes) as self.visit:
            update, self.remembered = outline.train(download, ClientMemory())
        self.returned = transport.upload(update, state.tensors)[0].tensors
        with outline.meter.reading(images) as self.test:
            outline.test([client], download, self.remembered, final=False)
        with outline.meter.reading(images) as self.last_test:
            outline.test([client], download, self.remembered, final=True)

    def travel(self) -> Travel:
        """Return what is sent down and up if every visit is like the typical client's first one."""
        down, up = self.sent, self.returned
        visits = self.config.rounds * self.config.clients_per_round
        each = count_bytes(down) + count_bytes(up)
        warm_up = count_bytes(self.replied) * len(self.asked)
        return Travel(
            download_floats=count_floats(down),
            upload_floats=count_floats(up),
            download_bytes=count_bytes(down),
            upload_bytes=count_bytes(up),
            round_bytes=each * self.config.clients_per_round,
            warm_up_bytes=warm_up,
            total_floats=visits * (count_floats(down) + count_floats(up)),
            total_bytes=visits * each + warm_up,
        )

    def arithmetic(self) -> Arithmetic:
        """Return the arithmetic of the run: what one image takes, times the images."""
        epochs = self.config.training.epochs
        images = sum(self._train_images(clients) for clients in self.sampled)
        adapted = self._train_images(self.tested)
        parts = {
            "training": self.visit.training * images,
            "other passes": self.visit.passes * images + self.warm.passes * self._train_images(self.asked),
            "tests": self.test.passes * (self._evaluations() * self._test_images())
            + self.last_test.training * adapted,
            "once per image": self._once(),
        }
        return Arithmetic(
            image_steps=images * epochs,
            evaluations=self._evaluations(),
            forward_gmac=1e-9 * self.visit.training.formula_forward / epochs,
            backward_gmac=1e-9 * self.visit.training.formula_backward / epochs,
            formula_pflop=2e-15 * sum(work.formula for work in parts.values()),
            pflop={name: 2e-15 * work.done for name, work in parts.items()},
        )

    def memory(self) -> Memory:
        """Return the bytes of weights, decoded images, frozen values and what clients remember."""
        outline, shape = self.outline, self.outline.model.architecture
        with torch.device("meta"):
            weights = sum(parameter.numel() for parameter in VisionTransformer(shape).parameters())
        pixels = len(outline.used) * 3 * shape.image_size**2
        return Memory(
            weights=4 * weights,
            pixels=pixels,
            pixels_in_file=pixels > self.config.data.cache_bytes,
            frozen=outline.cache.bytes,
            frozen_level=outline.cache.level,
            client_memories=count_bytes(self.remembered.tensors) * len(self.visited),
        )

    def _once(self) -> Work:
        """Return the work for values that are computed once per image and kept."""
        values: tuple[Work, Work] = self.outline.cache.once()
        prefix, bare = values
        asked = set(self.asked) if self.replied else set()
        users = [(self.warm, asked), (self.visit, self.visited)]
        with_bare = {client for work, clients in users if work.asks_bare for client in clients}
        tests = self._test_images()
        once = prefix * (self._train_images(self.visited | asked) + tests)
        return once + bare * (self._train_images(with_bare) + tests * self.test.asks_bare)

    def _evaluations(self) -> int:
        rounds, every = self.config.rounds, self.config.evaluation.every
        return 1 + (len(range(every, rounds, every)) if every else 0)

    def _train_images(self, clients: Iterable[int]) -> int:
        return int(self.outline.roster.train_sizes[list(clients)].sum())

    def _test_images(self) -> int:
        return int(self.outline.tested_sizes[self.tested].sum())


def some(clients: Sequence[int]) -> Sequence[int]:
    """Return all clients, or a thousand spread evenly where there are many more."""
    return clients[:: max(1, len(clients) // 1000)]
