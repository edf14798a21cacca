"""Where clients work: in this process, or in forked processes of one thread each.

The frozen weights, pixels and cached values are in memory shared by the fork.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from fedcue.clients.federation import Federation
from fedcue.machine import one_thread
from fedcue.rounds.observers import Stage
from fedcue.rounds.simulator import Job, Simulator, Step, let_work
from fedcue.rounds.workers import Workers


def engine_for(federation: Federation, tell: Stage | None = None) -> Simulator:
    """Return the engine that the settings name; leaving its block ends its processes."""
    config = federation.config
    if config.engine.name == "ray":
        from fedcue.rounds.on_ray.engine import RayEngine

        return RayEngine(federation, tell)
    return Executor(federation, config.workers, tell)


class Executor(Simulator):
    """Runs the clients' work in order; ``workers`` is the number of processes (1: this one)."""

    def __init__(self, federation: Federation, workers: int, tell: Stage | None = None) -> None:
        super().__init__(federation, tell)
        on_cpu = federation.model.device.type == "cpu"  # a GPU cannot be shared with forked processes
        self.workers = (workers or len(os.sched_getaffinity(0))) if on_cpu else 1
        let_work(federation.host)
        self._stack.enter_context(one_thread())
        self._processes: Workers | None = None
        if self.workers > 1:
            config = federation.roster.config
            self._processes = Workers(self.workers, federation.host.stop, config.client_timeout)
            self._stack.callback(self._processes.close)

    def _outcomes(self, step: Step, jobs: Iterable[Job]) -> Iterator[list[Any]]:
        """Yield results in order, from the worker processes if there are any."""
        if self._processes is None:
            return (step(*job) for job in jobs)
        return self._processes.map(step, jobs)
