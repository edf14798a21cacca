"""A Ray cluster: one that runs somewhere, or one that is started on this machine and ends with the run."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedcue.config.settings import RunConfig
from fedcue.errors import ConfigError, FedcueError

LOOPBACK = ("127.0.0.1", "localhost", "::1")

_KNOCK = 20.0
"""Seconds that a cluster's first machine has to take a connection."""

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without GPUs keeps its environment
    "RAY_worker_niceness": "0",  # a worker is as urgent as the run that waits for it
}
"""Environment variables for Ray, where the user has set no others."""


@dataclass(frozen=True)
class Cluster:
    """The nodes that are alive, and how many workers have room on them."""

    ray: Any
    address: str
    cpus: float
    gpus: float

    def room(self) -> dict[str, int]:
        """Return how many workers fit on each node that is alive, if nobody else is there."""
        alive = {node["NodeID"]: node["Resources"] for node in self.ray.nodes() if node["Alive"]}
        return {node: count for node, given in alive.items() if (count := self._fit(given))}

    def _fit(self, given: dict[str, float]) -> int:
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        return min(int(given.get(name, 0) / share + 1e-6) for name, share in wanted.items() if share)


@contextmanager
def joined(config: RunConfig) -> Iterator[Cluster]:
    """Join the cluster that is set, or start one on this machine for the block."""
    engine = config.engine
    address = engine.address or os.environ.get("RAY_ADDRESS") or "local"
    ray = _imported(address)
    on_gpu = config.device.startswith("cuda")
    gpus = engine.gpus_per_worker if engine.gpus_per_worker is not None else float(on_gpu)
    if ray.is_initialized():  # by the program that calls us, which also ends it
        yield Cluster(ray, ray.get_runtime_context().gcs_address, engine.cpus_per_worker, gpus)
        return
    folder = tempfile.mkdtemp(prefix="fedcue-ray-") if address == "local" else None
    try:
        with _own_signals():
            found = _init(ray, address, config, folder)
        yield Cluster(ray, found, engine.cpus_per_worker, gpus)
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _imported(address: str) -> Any:
    """Import Ray when it is needed; a cluster of this machine keeps to its loopback address."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if address == "local" or address.rpartition(":")[0] in LOOPBACK:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # its name for loopback only
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            "engine=ray needs Ray, which is not installed. Give pip install 'fedcue[ray]', or engine=local."
        ) from error


def _init(ray: Any, address: str, config: RunConfig, folder: str | None) -> str:
    """Connect to a cluster or start one; return its address."""
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if folder is not None:
        cores = len(os.sched_getaffinity(0))
        cpus = max(cores, int(config.workers * config.engine.cpus_per_worker))
        options |= {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": folder}
    try:
        if folder is None:
            _knock(address)
        context = ray.init(address=address, **options)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise FedcueError(
            f"No Ray cluster answers at {address} ({str(error)[:200]}). Start one with ray start --head, "
            "give its engine.address=HOST:PORT, or leave engine.address and RAY_ADDRESS out to get one."
        ) from error
    return str(context.address_info["gcs_address"])


def _knock(address: str) -> None:
    """Check that the address answers: Ray itself tries for minutes, and may end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what SIGTERM does: Ray would end the process at once, without a checkpoint."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
