"""Which engine a simulated run works with."""

from __future__ import annotations

from fedcue.clients.federation import Federation
from fedcue.rounds.executor import Executor
from fedcue.rounds.observers import Stage
from fedcue.rounds.simulator import Simulator


def engine_for(federation: Federation, tell: Stage | None = None) -> Simulator:
    """Return the engine that the settings name; leaving its block ends its processes."""
    config = federation.config
    if config.engine.name == "ray":
        from fedcue.rounds.on_ray.engine import RayEngine

        return RayEngine(federation, tell)
    return Executor(federation, config.workers, tell)
