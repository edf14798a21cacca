"""One visit and one test of a typical client on a counting backbone, from which a whole run follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from fedcue.aggregate.mean import Summing
from fedcue.clients.federation import used_images
from fedcue.model.vit import VisionTransformer
from fedcue.plan.counting_vit import Work
from fedcue.plan.stand_ins import StandIn
from fedcue.rounds.transport import Traffic, Wire
from fedcue.types import ClientMemory, Download, count_bytes


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
    """Bytes that a run keeps in memory."""

    weights: int
    pixels: int
    pixels_in_file: bool
    frozen: int
    frozen_level: str
    client_memories: int


class TypicalClient:
    """What a typical client does, counted, and who is visited and tested how often."""

    def __init__(self, stand: StandIn) -> None:
        self.stand, self.roster = stand, stand.federation.roster
        self.config, self.method = self.roster.config, self.roster.method
        schedule = self.roster.schedule
        self.sampled = [schedule.drawn(number) for number in range(self.config.rounds)]
        self.visited = {client for clients in self.sampled for client in clients}
        self.asked = schedule.first()
        self.tested = self.roster.tested()
        looked_at = some(schedule.training.tolist())
        self.typical: int = sorted(looked_at, key=stand.class_count)[len(looked_at) // 2]
        self._try()

    def _try(self) -> None:
        """Let the typical client do everything once."""
        stand, client, seed = self.stand, self.typical, self.config.seed
        host, sizes, meter = stand.host, self.roster.sizes, stand.meter
        classes, images = stand.class_count(client), host.test_size(client)
        wire = Wire(self.config, self.roster.table)
        with meter.reading(classes) as self.warm:  # a visit here has an image per class
            reply = host.warm_up(client)
        adding = self.config.aggregate.adding({}, Summing(self.roster.table))
        if reply is not None:
            adding.add(wire.first_reply(reply))
        self.warm_traffic, wire.traffic = wire.traffic, Traffic()
        state = self.method.start(sizes, seed, adding.sums())
        sent = self.method.download(state, client, sizes, seed)
        download = Download(client, state.round, sent)
        wire.download(download)
        with meter.reading(classes) as self.visit:
            update, self.remembered = host.train(download, ClientMemory())
        wire.upload(update, state.tensors)
        self.traffic = wire.traffic
        with meter.reading(images) as self.test:
            host.test([client], download, self.remembered, final=False)
        with meter.reading(images) as self.last_test:
            host.test([client], download, self.remembered, final=True)

    def travel(self) -> Travel:
        """Return what is sent down and up if every visit is like the typical client's first one."""
        each, visits = self.traffic, self.config.rounds * self.config.clients_per_round
        both_ways = each.download_bytes + each.upload_bytes
        warm_up = self.warm_traffic.upload_bytes * len(self.asked)
        return Travel(
            download_floats=each.download_floats,
            upload_floats=each.upload_floats,
            download_bytes=each.download_bytes,
            upload_bytes=each.upload_bytes,
            round_bytes=both_ways * self.config.clients_per_round,
            warm_up_bytes=warm_up,
            total_floats=visits * (each.download_floats + each.upload_floats),
            total_bytes=visits * both_ways + warm_up,
        )

    def arithmetic(self) -> Arithmetic:
        """Return the arithmetic of the run: what one image takes, times the images."""
        epochs = self.config.training.epochs
        images = sum(self._train_images(clients) for clients in self.sampled)
        adapted = self._train_images(self.tested)
        parts = {
            "training": self.visit.training * images,
            "other passes": self.visit.passes * images + self.warm.passes * self._train_images(self.asked),
            "tests": self.test.passes * (self._evaluations() * self._test_images()),
            "training for the last test": self.last_test.training * adapted,
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
        federation, frozen = self.stand.federation, self.stand.frozen
        shape = federation.model.architecture
        with torch.device("meta"):
            weights = sum(parameter.numel() for parameter in VisionTransformer(shape).parameters())
        pixels = len(used_images(federation.config, federation.clients)) * 3 * shape.image_size**2
        return Memory(
            weights=4 * weights,
            pixels=pixels,
            pixels_in_file=pixels > self.config.data.cache_bytes,
            frozen=frozen.bytes,
            frozen_level=frozen.level,
            client_memories=count_bytes(self.remembered.tensors) * len(self.visited),
        )

    def _once(self) -> Work:
        """Return the work for values that are computed once per image and kept."""
        prefix, bare = self.stand.frozen.once()
        asked = set(self.asked) if self.roster.table.replied else set()
        users = [(self.warm, asked), (self.visit, self.visited)]
        with_bare = {client for work, clients in users if work.asks_bare for client in clients}
        tests = self._test_images()
        once = prefix * (self._train_images(self.visited | asked) + tests)
        return once + bare * (self._train_images(with_bare) + tests * self.test.asks_bare)

    def _evaluations(self) -> int:
        rounds, every = self.config.rounds, self.config.evaluation.every
        return 1 + self.method.adapts() + (len(range(every, rounds, every)) if every else 0)

    def _train_images(self, clients: Iterable[int]) -> int:
        return int(self.roster.train_sizes[list(clients)].sum())

    def _test_images(self) -> int:
        return int(self.stand.tested_sizes[self.tested].sum())


def some(clients: Sequence[int]) -> Sequence[int]:
    """Return all clients, or a thousand spread evenly where there are many more."""
    return clients[:: max(1, len(clients) // 1000)]
