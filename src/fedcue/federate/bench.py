"""How close to this machine's limit PEP-FedPT runs: samples per second against matrix multiplies.

The plain-equivalent share compares what a plain step would compute (all blocks, all tokens, forward
and backward of the activations) per second with the best rate of float32 matrix multiplication,
both measured in the same processes, turn by turn. Above 1, the work that is not done at all makes
the step faster than the plain one could be on this machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from pydantic import Field

from fedcue.federate.run import peak_memory_mb
from fedcue.methods.base import Visit
from fedcue.methods.pep import PEP
from fedcue.model.backbone import load_backbone
from fedcue.model.frozen import FrozenCache
from fedcue.model.prompted import PromptedViT
from fedcue.model.vit import Architecture
from fedcue.registry import Options
from fedcue.rng import torch_rng
from fedcue.settings import Training
from fedcue.train.samples import Samples
from fedcue.types import ClientMemory, ServerState, Setting

MATRIX = 1536
EPOCHS = 5


class Job(Options):
    """What is measured: a backbone, its input, and one client's batch, several times over."""

    backbone: str = "embedded"
    image_size: int | None = Field(default=None, ge=1)
    batch: int = Field(default=50, ge=1)
    classes: int = Field(default=100, ge=1)
    turns: int = Field(default=5, ge=1)


def plain_step_macs(shape: Architecture, prompts: int = 2) -> float:
    """Return the multiply-adds of a plain training step for one image, forward and backward.

    Per block of T tokens: ``12 T d^2 + 2 T^2 d`` forward (with the usual perceptron of 4 d), and
    ``12 T d^2 + 4 T^2 d`` backward, as frozen weights need gradients of activations only.
    """
    tokens, width = shape.tokens + prompts, shape.width
    linear = tokens * width * (4 * width + 2 * shape.hidden)
    patches = shape.patches * 3 * shape.patch**2 * width
    return shape.depth * (2 * linear + 6 * tokens**2 * width) + patches


def plain_forward_macs(shape: Architecture, prompts: int = 2) -> float:
    """Return the multiply-adds of a plain forward pass for one image."""
    tokens, width = shape.tokens + prompts, shape.width
    linear = tokens * width * (4 * width + 2 * shape.hidden)
    return shape.depth * (linear + 2 * tokens**2 * width) + shape.patches * 3 * shape.patch**2 * width


def bench(job: Job, workers: int = 0) -> dict[str, Any]:
    """Measure on ``workers`` processes of one thread at a time; rates are summed over them."""
    count = workers or len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    shape = load_backbone(job.backbone, job.image_size).architecture
    with get_context("fork").Pool(count) as pool:
        parts = pool.map(_measure, [job] * count, chunksize=1)
    rates = {name: sum(part[name] for part in parts) for name in parts[0]}
    gflops = rates["matmul"] / 1e9
    step = 2 * plain_step_macs(shape)
    round_work = EPOCHS * step + 2 * plain_forward_macs(shape)
    ccmp = 2 * len(PEP().layers) * job.classes * shape.width
    return {
        "backbone": job.backbone,
        "image_size": shape.image_size,
        "batch": job.batch,
        "workers": count,
        "matmul_gflops": gflops,
        "train_samples_per_second": rates["train"],
        "prototype_samples_per_second": rates["prototypes"],
        "evaluate_samples_per_second": rates["evaluate"],
        "plain_train_samples_per_second": rates["plain"],
        "plain_equivalent_share": rates["train"] * step / rates["matmul"],
        "round_equivalent_share": rates["round"] * round_work / rates["matmul"],
        "plain_share": rates["plain"] * step / rates["matmul"],
        "mixing_share_of_forward": ccmp / plain_forward_macs(shape),
        "mixing_share_by_the_papers_formula": ccmp / paper_forward_macs(shape),
        "peak_memory_mb": peak_memory_mb(),
    }


def paper_forward_macs(shape: Architecture) -> float:
    """Return the forward pass as the paper counts it: four projections and the attention scores."""
    tokens, width = shape.tokens + 1, shape.width
    return shape.depth * (4 * tokens * width**2 + tokens**2 * width)


def _measure(job: Job) -> dict[str, float]:
    """Return this process's best rates: flops of a product, images per second of each kind of pass."""
    client = _Client(job)
    one, other = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
    contenders: dict[str, tuple[float, Callable[[], object]]] = {
        "matmul": (2.0 * MATRIX**3, lambda: one @ other),
        "train": (job.batch, client.train),
        "plain": (job.batch, client.plain),
        "prototypes": (job.batch, client.prototypes),
        "evaluate": (job.batch, client.evaluate),
        "round": (job.batch, client.round),
    }
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(job.turns):
        for name, (_, work) in contenders.items():
            started = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - started)
    return {name: amount / best[name] for name, (amount, _) in contenders.items()}


class _Client:
    """One client with a batch of random images, as the engine would run it."""

    def __init__(self, job: Job) -> None:
        self.model = PromptedViT(load_backbone(job.backbone, job.image_size))
        shape = self.model.architecture
        self.setting = Setting(job.classes, shape.width, shape.depth, shape.patch, 1)
        self.method = PEP(layers=tuple(block for block in (4, 5, 6) if block < shape.depth))
        size = (job.batch, 3, shape.image_size, shape.image_size)
        self.images = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch_rng(0, "images"))
        self.labels = torch.arange(job.batch) % min(10, job.classes)
        self.visit = self._visit(job)
        reply = self.method.warm_up(self.visit)
        self.state: ServerState = self.method.start(self.setting, 0, [reply] if reply else [])
        self.download = self.method.download(self.state, 0, 0)
        priors = self.visit.samples.log_priors
        self.tensors = self.method.personalize(self.model, self.download, priors, ClientMemory())

    def _visit(self, job: Job) -> Visit:
        cache = FrozenCache(
            self.model,
            lambda indices: self.images[torch.from_numpy(indices)],
            [np.arange(job.batch)],
            self.method.first_block(self.setting),
            self.method.bare_blocks(self.setting),
            limit_bytes=2**40,
        )
        counts = torch.bincount(self.labels, minlength=job.classes)
        samples = Samples(cache.view([0]), self.labels, (counts / counts.sum()).log())
        training = Training(epochs=EPOCHS, batch_size=job.batch, lr=1e-4)
        return Visit(0, self.model, samples, training, torch_rng(0, "client"), job.batch)

    def train(self) -> None:
        batch = next(self.visit.samples.batches(len(self.labels), self.visit.generator))
        trained = {name: self.tensors[name].clone().requires_grad_() for name in self.method.shared()}
        self.method.loss(self.model, self.tensors)(trained, batch).backward()

    def plain(self) -> None:
        """Take the same step as a plain implementation does: every block for every token."""
        vit = self.model.backbone
        prompt = self.tensors["shared_prompts"].clone().requires_grad_()
        head = self.tensors["head"].clone().requires_grad_()
        x = vit.embed(vit.normalise(self.images))
        x = torch.cat([x[:, :1], prompt.expand(len(x), -1, -1), x[:, 1:]], 1)
        for block in vit.blocks:
            x = block(x)
        logits = vit.norm(x)[:, 0] @ head.T
        torch.nn.functional.cross_entropy(logits, self.labels).backward()

    @torch.no_grad()
    def prototypes(self) -> None:
        batch = next(self.visit.samples.batches(len(self.labels)))
        prompter = self.method.prompter(self.model, self.tensors, batch)
        self.model.cls_tokens(batch.inputs, prompter, self.method.layers)

    @torch.no_grad()
    def evaluate(self) -> None:
        self.method.predict(self.model, self.tensors, next(self.visit.samples.batches(len(self.labels))))

    def round(self) -> None:
        update, _ = self.method.update(self.visit, self.download, ClientMemory())
        self.method.aggregate(self.state, [update])
