"""A worker of a Ray cluster: one process that can be any client."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import torch

from fedcue.machine import peak_memory_mb
from fedcue.rounds import simulator
from fedcue.rounds.on_ray.parcel import Parcel


@dataclass(frozen=True)
class Arrival:
    """What a worker says when it is ready: where it is, and what its start took."""

    process: int
    seconds: float
    memory_mb: float


class Worker:
    """Holds the frozen backbone and what it computed; clients visit it one after the other."""

    def prepare(self, parcel: Parcel, threads: int) -> Arrival:
        """Become able to do any client's work."""
        started = time.perf_counter()
        torch.set_num_threads(threads)
        simulator.let_work(parcel.host())
        return Arrival(os.getpid(), time.perf_counter() - started, peak_memory_mb())

    def visit(self, step: str, job: simulator.Job) -> tuple[list[Any], float]:
        """Do a step (``warm_up``, ``train``, ``test``); return what came of each client, and the seconds."""
        started = time.perf_counter()
        outcomes = simulator.STEPS[step](*job)
        return outcomes, time.perf_counter() - started
