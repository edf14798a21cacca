"""What a run would do, without doing it: clients, what travels, arithmetic, memory and time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcue.config.settings import RunConfig
from fedcue.data.image_sources import only_outlined
from fedcue.machine import one_thread
from fedcue.model.prompted import PRODUCTS, Precision
from fedcue.model.vit import Architecture
from fedcue.plan.stand_ins import StandIn, stand_in
from fedcue.plan.typical_client import Arithmetic, Memory, Travel, TypicalClient, some

_EFFICIENCY = 0.6
"""Share of the machine's speed at large matrix products that a run reaches."""


@dataclass(frozen=True)
class Population:
    """The clients and their images; the triples are smallest, median and largest."""

    clients: int
    heldout: int
    classes: int
    train_images: int
    test_images: int
    images_per_client: tuple[int, int, int]
    classes_per_client: tuple[int, int, int]
    described: bool
    """Whether the numbers come from the dataset's description, not from its files."""


@dataclass(frozen=True)
class Ratios:
    """What a smaller scale must keep, if its results are to say something of the larger one."""

    classes_to_width: float
    """Classes that one mixed prompt must tell apart, for each of its numbers."""
    share_held: float
    """Share of the classes that a client holds (the median)."""
    visits_of_a_class: float
    """How often a class is visited in a round."""
    steps_of_a_visit: float
    """Training steps of a client (the median) in a round."""


@dataclass(frozen=True)
class Plan:
    """What a run would do; ``gflops`` is the measured speed of one of its ``workers`` in ``precision``."""

    recipe: str
    method: str
    dataset: str
    backbone: str
    architecture: Architecture
    rounds: int
    clients_per_round: int
    population: Population
    ratios: Ratios
    travel: Travel
    arithmetic: Arithmetic
    memory: Memory
    privacy: dict[str, Any]
    """What the run's summary will say of its privacy if no round is drawn again."""
    workers: int
    precision: Precision
    gflops: float
    efficiency: float
    seconds: float

    def plain(self) -> dict[str, Any]:
        """Return the plan as values JSON knows."""
        return asdict(self)


def plan(config: RunConfig, gflops: float | None = None) -> Plan:
    """Plan a run; the speed of one of this machine's cores is measured unless ``gflops`` gives it."""
    with one_thread():  # as a run's processes
        stand = stand_in(config)
        typical = TypicalClient(stand)
        arithmetic = typical.arithmetic()
        gflops = matmul_gflops(config.precision) if gflops is None else gflops
    workers = config.workers or len(os.sched_getaffinity(0))
    return Plan(
        recipe=config.recipe,
        method=config.method.name,
        dataset=stand.federation.dataset.name,
        backbone=config.backbone.name,
        architecture=stand.federation.model.architecture,
        rounds=config.rounds,
        clients_per_round=config.clients_per_round,
        population=_population(stand),
        ratios=ratios(stand),
        travel=typical.travel(),
        arithmetic=arithmetic,
        memory=typical.memory(),
        privacy=stand.federation.roster.budget.planned().summary().get("privacy", {}),
        workers=workers,
        precision=config.precision,
        gflops=gflops,
        efficiency=_EFFICIENCY,
        seconds=1e6 * arithmetic.total_pflop / (workers * gflops * _EFFICIENCY),
    )


def matmul_gflops(precision: Precision, seconds: float = 0.5) -> float:
    """Measure how fast one core multiplies matrices of this precision, in GFLOP per second of its own time.

    The best of several moments counts, and not the time that other processes take from the core: the
    plan is for a machine that is free.
    """
    dtype, best = PRODUCTS[precision], float("inf")
    left, right = torch.ones(512, 768, dtype=dtype), torch.ones(768, 512, dtype=dtype)
    ended = time.process_time() + seconds
    while time.process_time() < ended:
        started = time.process_time()
        for _ in range(5):
            left @ right
        best = min(best, time.process_time() - started)
    return 2e-9 * 5 * left.numel() * right.shape[1] / best


def ratios(stand: StandIn) -> Ratios:
    """Return the ratios of a run."""
    roster, config = stand.federation.roster, stand.federation.config
    clients = some(roster.training_clients.tolist())
    held = float(np.median([stand.class_count(client) for client in clients]))
    classes, training = roster.sizes.classes, config.training
    images = float(np.median(roster.train_sizes[roster.training_clients]))
    return Ratios(
        classes_to_width=classes / roster.sizes.width,
        share_held=held / classes,
        visits_of_a_class=config.clients_per_round * held / classes,
        steps_of_a_visit=training.epochs * images / training.batch_size,
    )


def _population(stand: StandIn) -> Population:
    roster, sizes = stand.federation.roster, stand.federation.roster.train_sizes
    return Population(
        clients=len(roster),
        heldout=int(roster.heldout.sum()),
        classes=roster.sizes.classes,
        train_images=int(sizes.sum()),
        test_images=int(stand.tested_sizes.sum()),
        images_per_client=_spread(sizes),
        classes_per_client=_spread([stand.class_count(client) for client in some(range(len(roster)))]),
        described=only_outlined(stand.federation.dataset.images),
    )


def _spread(values: Sequence[int] | NDArray[np.int64]) -> tuple[int, int, int]:
    return int(min(values)), int(np.median(values)), int(max(values))
