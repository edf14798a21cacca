"""What a Ray cluster adds to a visit, and what the start of a worker takes.

A worker says how long it was at a visit. What the same visit took as seen from the run, less that, is what
the way there and back added: packing, messages, waiting. Being a difference within one visit, it does not
move with the machine's speed from one visit to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from fedcue.clients.federation import Federation, gather, prompted, split
from fedcue.config.layers import load
from fedcue.config.settings import RunConfig
from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import JoinedImages
from fedcue.data.pixels import PixelStore
from fedcue.model.shapes import shape_of
from fedcue.model.vit import VisionTransformer
from fedcue.plan.bench import EPOCHS, LEAST_TURNS, BenchOptions, circumstances
from fedcue.rng import torch_rng
from fedcue.rounds.executor import Executor
from fedcue.rounds.on_ray.engine import RayEngine
from fedcue.rounds.simulator import Simulator
from fedcue.types import ClientMemory, Download, Update


def bench_ray(job: BenchOptions) -> dict[str, Any]:
    """Visit the same client in this process and on Ray, in turns."""
    around, federation = circumstances(), one_client(job)
    with Executor(federation, 1) as here:
        download = _download(here)
        started = time.perf_counter()
        with RayEngine(federation) as there:
            joined = time.perf_counter() - started
            first = _seconds(there, download)
            start = first - there.pool.seconds
            alone, inside, outside = _visits(here, there, download, job.seconds)
            [arrival] = there.pool.arrived
    added = median(out - within for out, within in zip(outside, inside, strict=True))
    return {
        **around,
        "engine": "ray",
        "backbone": job.backbone,
        "image_size": federation.model.architecture.image_size,
        "batch": job.batch,
        "precision": job.precision,
        "visits": len(inside),
        "visit_seconds": median(inside),
        "visit_seconds_in_this_process": median(alone),
        "added_seconds": added,
        "added_share": added / median(inside),
        "cluster_start_seconds": joined,
        "worker_start_seconds": start,
        "worker_prepare_seconds": arrival.seconds,
        "worker_memory_mb": arrival.memory_mb,
    }


def one_client(job: BenchOptions) -> Federation:
    """Return a federation of one client with a batch of random images and random weights."""
    config = _config(job)
    shape = shape_of(job.backbone, job.image_size)
    backbone = VisionTransformer(shape).eval().requires_grad_(False)
    count, held = job.batch + 1, min(job.held, job.classes)
    size = (count, 3, shape.image_size, shape.image_size)
    images = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch_rng(0, "images"))
    labels = np.append(np.arange(job.batch) % held, 0)
    classes = tuple(f"class {number}" for number in range(job.classes))
    dataset = Dataset("noise", classes, labels, np.arange(count) == job.batch, JoinedImages([]))
    pixels = PixelStore(images, torch.arange(count), np.empty(0, dtype=np.int64))
    return gather(config, dataset, split(config, dataset), pixels, prompted(config, backbone, "cpu"))


def _config(job: BenchOptions) -> RunConfig:
    client = ["partition=iid", "partition.clients=1", "clients_per_round=1", "heldout=0", "workers=1"]
    visit = [f"training.epochs={EPOCHS}", f"training.batch_size={job.batch}", "training.lr=1e-4"]
    return load("default", [*client, *visit, "engine=ray", "method=pep", f"precision={job.precision}"])


def _download(engine: Simulator) -> Download:
    """Return what the client is sent in the first round."""
    roster = engine.roster
    adding = roster.protection.adding({}, "warm up")
    for reply in engine.warm_up([0]):
        assert isinstance(reply, Update), reply
        adding.add(reply)
    state = roster.method.start(roster.sizes, 0, adding.sums())
    return Download(0, 0, roster.method.download(state, 0, roster.sizes, 0))


def _visits(
    here: Simulator, there: RayEngine, download: Download, seconds: float
) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of visits in this process, in a worker, and in a worker as seen from here."""
    alone, inside, outside = list[float](), list[float](), list[float]()
    until = time.perf_counter() + seconds
    while len(inside) < LEAST_TURNS or time.perf_counter() < until:
        alone.append(_seconds(here, download))
        before = there.pool.seconds
        outside.append(_seconds(there, download))
        inside.append(there.pool.seconds - before)
    return alone, inside, outside


def _seconds(engine: Simulator, download: Download) -> float:
    started = time.perf_counter()
    [outcome] = engine.train([(download, ClientMemory())])
    assert isinstance(outcome, tuple), outcome
    return time.perf_counter() - started


ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "backbone": lambda r: f"{r['backbone']} at {r['image_size']} px, {r['precision']}, random weights",
    "work": lambda r: f"{r['visits']} visits of one client: {EPOCHS} epochs of a batch of {r['batch']}",
    "visit in a worker": lambda r: f"{r['visit_seconds']:.3f} s",
    "visit in this process": lambda r: f"{r['visit_seconds_in_this_process']:.3f} s",
    "added by Ray": lambda r: f"{1000 * r['added_seconds']:.1f} ms, {r['added_share']:.2%} of a visit",
    "start of the cluster": lambda r: f"{r['cluster_start_seconds']:.1f} s",
    "start of a worker": lambda r: (
        f"{r['worker_start_seconds']:.1f} s, {r['worker_prepare_seconds']:.1f} s of it after imports; "
        f"{r['worker_memory_mb']:.0f} MiB"
    ),
}
"""The measurements as text."""
