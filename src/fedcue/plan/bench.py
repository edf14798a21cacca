"""How close to this machine's limit PEP-FedPT runs: samples per second against matrix multiplies.

The plain-equivalent share compares what a plain step would compute (all blocks, all tokens, forward
and backward of the activations) per second with the best rate of matrix multiplication in the same precision,
both measured in the same processes, turn by turn. Above 1, the work that is not done at all makes
the step faster than the plain one could be on this machine.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from fedcue.aggregate.mean import sum_updates
from fedcue.machine import one_thread, peak_memory_mb
from fedcue.methods.client import Client
from fedcue.methods.pep import PEP
from fedcue.model.frozen_cache import FrozenCache
from fedcue.model.prompted import Precision, PromptedViT
from fedcue.model.shapes import shape_of
from fedcue.model.vit import Architecture, VisionTransformer
from fedcue.options import Options
from fedcue.record.folder import environment
from fedcue.rng import torch_rng
from fedcue.train.batches import Samples
from fedcue.train.settings import Training
from fedcue.types import Sizes, Update

MATRIX = 1536
EPOCHS = 5
LEAST_TURNS = 2


class BenchOptions(Options):
    """The measured case: the shape of a backbone, its input, and one client's batch."""

    backbone: str = Field(default="embedded", description="'embedded', a folder, or the name of a timm ViT")
    image_size: int | None = Field(default=None, ge=1, description="pixels (default: the checkpoint's)")
    batch: int = Field(default=50, ge=1, description="images of the client, one batch of them")
    classes: int = Field(default=100, ge=1, description="classes of the task")
    held: int = Field(default=10, ge=1, description="classes that the client holds")
    seconds: float = Field(default=30, ge=0, description="turns go on for so long; there are at least two")
    workers: int = Field(default=0, ge=0, description="processes of one thread each; 0: one per core")
    precision: Precision = "float32"
    engine: Literal["local", "ray"] = Field(
        default="local", description="ray: measure what Ray adds to a visit"
    )


def circumstances() -> dict[str, Any]:
    """Return the conditions of a measurement: machine, date, versions, commit, load before it."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "machine": f"{len(os.sched_getaffinity(0))} cores, {names[0] if names else platform.machine()}",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "environment": environment(),
        "load_before": os.getloadavg()[0],
    }


def bench(job: BenchOptions) -> dict[str, Any]:
    """Measure in several processes of one thread at a time; rates are summed over them."""
    around = circumstances()
    count = job.workers or len(os.sched_getaffinity(0))
    with one_thread(), get_context("fork").Pool(count) as pool:
        parts = pool.map(_measure, [job] * count, chunksize=1)
        memory = peak_memory_mb()
    rates = {name: sum(part[name] for part in parts) for name in parts[0]}
    shape = shape_of(job.backbone, job.image_size)
    step = 2 * plain_step_macs(shape)
    round_work = EPOCHS * step + 2 * plain_forward_macs(shape)
    mixing = mixing_macs(shape, job.classes)
    return {
        **around,
        "load_after": os.getloadavg()[0],
        "backbone": job.backbone,
        "image_size": shape.image_size,
        "batch": job.batch,
        "classes": job.classes,
        "precision": job.precision,
        "workers": count,
        "matmul_gflops": rates["matmul"] / 1e9,
        "train_samples_per_second": rates["train"],
        "prototype_samples_per_second": rates["prototypes"],
        "evaluate_samples_per_second": rates["evaluate"],
        "plain_train_samples_per_second": rates["plain"],
        "plain_equivalent_share": rates["train"] * step / rates["matmul"],
        "round_equivalent_share": rates["round"] * round_work / rates["matmul"],
        "plain_share": rates["plain"] * step / rates["matmul"],
        "peak_memory_mb": memory,
        "mixing_macs": mixing,
        "forward_macs": plain_forward_macs(shape),
        "forward_macs_by_the_papers_formula": paper_forward_macs(shape),
        "mixing_share_of_forward": mixing / plain_forward_macs(shape),
        "mixing_share_by_the_papers_formula": mixing / paper_forward_macs(shape),
    }


def plain_forward_macs(shape: Architecture, prompts: int = 2) -> float:
    """Return the multiply-adds of a plain forward pass for one image.

    Per block of T tokens: ``12 T d^2 + 2 T^2 d`` (with the usual perceptron of 4 d).
    """
    tokens, width = shape.tokens + prompts, shape.width
    linear = tokens * width * (4 * width + 2 * shape.hidden)
    return shape.depth * (linear + 2 * tokens**2 * width) + shape.patches * 3 * shape.patch**2 * width


def plain_step_macs(shape: Architecture, prompts: int = 2) -> float:
    """Return the multiply-adds of a plain training step for one image, forward and backward.

    Backward, a block takes ``12 T d^2 + 4 T^2 d``: frozen weights need gradients of activations only.
    """
    tokens, width = shape.tokens + prompts, shape.width
    linear = tokens * width * (4 * width + 2 * shape.hidden)
    return plain_forward_macs(shape, prompts) + shape.depth * (linear + 4 * tokens**2 * width)


def paper_forward_macs(shape: Architecture) -> float:
    """Return the forward pass as the paper counts it: four projections and the attention scores."""
    tokens, width = shape.tokens + 1, shape.width
    return shape.depth * (4 * tokens * width**2 + tokens**2 * width)


def mixing_macs(shape: Architecture, classes: int) -> float:
    """Return the multiply-adds of scoring and mixing so many classes' prompts at the mixed blocks."""
    return 2.0 * len(PEP().layers) * classes * shape.width


def best_times(work: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Let contenders take turns for so long; return the best time of each.

    What counts is the time that this process was on a core: on a quiet machine that is the time that
    passed, on a busy one other programs do not count.
    """
    best, turns, started = dict.fromkeys(work, float("inf")), 0, time.perf_counter()
    while turns < LEAST_TURNS or time.perf_counter() - started < seconds:
        for name, do in work.items():
            before = time.process_time()
            do()
            best[name] = min(best[name], time.process_time() - before)
        turns += 1
    return best


def _measure(job: BenchOptions) -> dict[str, float]:
    """Return this process's best rates: flops of a product, images per second of each kind of pass."""
    torch.set_num_threads(1)
    client = BenchClient(job)
    matrix = torch.randn(MATRIX, MATRIX).to(client.model.dtype)
    kinds = ("train", "plain", "prototypes", "evaluate", "round")
    work: dict[str, Callable[[], object]] = {kind: getattr(client, kind) for kind in kinds}
    best = best_times({"matmul": partial(torch.matmul, matrix, matrix), **work}, job.seconds)
    flops = 2.0 * MATRIX**3
    return {name: (flops if name == "matmul" else job.batch) / least for name, least in best.items()}


class BenchClient:
    """One client with a batch of random images, as the engine would run it.

    The weights are random too: speed does not depend on them, so that no checkpoint is needed.
    """

    def __init__(self, job: BenchOptions) -> None:
        shape = shape_of(job.backbone, job.image_size)
        backbone = VisionTransformer(shape).eval().requires_grad_(False)
        self.model = PromptedViT(backbone, job.precision)
        self.sizes = Sizes(job.classes, shape.width, shape.depth, shape.patch, 1)
        self.method = PEP(layers=tuple(block for block in PEP().layers if block < shape.depth))
        size = (job.batch, 3, shape.image_size, shape.image_size)
        self.images = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch_rng(0, "images"))
        held = min(job.held, job.classes)
        self.labels = torch.arange(job.batch) % held
        priors = torch.zeros(job.classes)
        priors[:held] = 1 / held
        self.client = self._client(job, priors.log())
        reply = Update(0, job.batch, self.method.warm_up(self.client))
        table = self.client.table
        self.state = self.method.start(self.sizes, 0, sum_updates([reply], table))
        self.sent = self.method.download(self.state, 0, self.sizes, 0)
        self.tensors = self.method.personal(self.client, self.sent)

    def _client(self, job: BenchOptions, log_priors: torch.Tensor) -> Client:
        images = np.arange(job.batch)
        cache = FrozenCache(
            self.model,
            lambda indices: self.images[torch.from_numpy(indices)],
            [images],
            self.method.first_block(self.sizes),
            self.method.bare_blocks(self.sizes),
            limit_bytes=2**40,
        )
        samples = Samples(cache.view(images), self.labels, log_priors)
        training = Training(epochs=EPOCHS, batch_size=job.batch, lr=1e-4)
        table, stream = self.method.table(self.sizes), torch_rng(0, "client")
        return Client(0, samples, log_priors, table, self.sizes, training, stream, 0, chunk=job.batch)

    def train(self) -> None:
        """Do the forward and backward pass of a training step."""
        batch = next(self.client.samples.batches(len(self.labels), self.client.generator))
        names = self.client.table.trained
        trained = {name: self.tensors[name].clone().requires_grad_() for name in names}
        self.method.loss(self.tensors)(trained, batch).backward()

    def plain(self) -> None:
        """Do the same step as a plain implementation does: every block for every token."""
        vit = self.model.backbone
        prompt = self.tensors["shared_prompts"].clone().requires_grad_()
        head = self.tensors["head"].clone().requires_grad_()
        with self.model.autocast():
            x = vit.embed(vit.normalise(self.images))
            x = torch.cat([x[:, :1], prompt.expand(len(x), -1, -1), x[:, 1:]], 1)
            for block in vit.blocks:
                x = block(x)
        logits = vit.norm(x)[:, 0] @ head.T
        torch.nn.functional.cross_entropy(logits, self.labels).backward()

    @torch.no_grad()
    def prototypes(self) -> None:
        """Compute the tokens of which class centroids are means."""
        self.method.cls_tokens(self.tensors, next(self.client.samples.batches(len(self.labels))))

    @torch.no_grad()
    def evaluate(self) -> None:
        """Predict."""
        self.method.predict(self.tensors, next(self.client.samples.batches(len(self.labels))))

    def round(self) -> None:
        """Do a whole round of this one client: centroids, training, aggregation."""
        update = self.method.update(self.client, self.sent)
        self.method.aggregate(self.state, sum_updates([update], self.client.table))
