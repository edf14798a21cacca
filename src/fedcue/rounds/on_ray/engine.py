"""Clients at work on a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from fedcue.clients.federation import Federation
from fedcue.machine import one_thread
from fedcue.rounds.observers import Stage
from fedcue.rounds.on_ray.cluster import joined
from fedcue.rounds.on_ray.parcel import Parcel
from fedcue.rounds.on_ray.pool import Pool
from fedcue.rounds.simulator import Job, Simulator, Step, let_work


class RayEngine(Simulator):
    """Runs the clients' work on whatever nodes there are, with the results of one process."""

    def __init__(self, federation: Federation, tell: Stage | None = None) -> None:
        super().__init__(federation, tell)
        config, self.workers = federation.config, 0
        self._visits, self._seconds = 0, 0.0
        self._stack.enter_context(one_thread())
        self.tell("joining the cluster", 0, 0)
        with ExitStack() as undo:
            self.cluster = undo.enter_context(joined(config))
            parcel = self.cluster.ray.put(Parcel.of(federation))
            check, patience = federation.host.stop.check, config.engine.timeout
            self.pool = Pool(self.cluster, parcel, config.workers, patience, check, config.client_timeout)
            undo.callback(self.pool.close)
            self._stack.push(undo.pop_all())
        let_work(federation.host)

    def news(self) -> dict[str, Any]:
        """Return nodes, workers, and visits a second since the last call."""
        rate = self._visits / self._seconds if self._seconds else 0.0
        self._visits, self._seconds = 0, 0.0
        nodes = len(self.cluster.room())
        return {"nodes": nodes, "workers": self.pool.ready, "visits_per_second": rate}

    def _outcomes(self, step: Step, jobs: Iterable[Job]) -> Iterator[list[Any]]:
        """Yield results in order, whoever computed them."""
        started = time.perf_counter()
        for outcomes in self.pool.map(step.__name__, jobs):
            self._visits += 1
            self.workers = max(self.workers, self.pool.ready)
            yield outcomes
        self._seconds += time.perf_counter() - started
