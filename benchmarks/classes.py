"""What the mixing of class prompts takes of a training step, from 10 to 10,000 classes.

    python benchmarks/classes.py [--backbone timm/vit_tiny_patch16_224 --image-size 128] [--json classes.json]

The client holds every class, so that no row is left out: the worst case. The mixing is timed by itself,
forward and backward, at as many blocks as PEP-FedPT mixes at, turn by turn with the whole step.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from machine import circumstances

from fedcue.plan.bench import BenchClient, BenchOptions, best_times, mixing_macs, plain_forward_macs


def measure(job: BenchOptions, seconds: float) -> dict[str, Any]:
    """Time the step, the mixing and the head of one client that holds every class."""
    client = BenchClient(job)
    method, tensors = client.method, client.tensors
    batch = next(client.client.samples.batches(job.batch))
    cls = torch.randn(job.batch, client.model.architecture.width)
    features = torch.randn_like(cls)

    def mixing() -> None:
        prompts, own = tensors["class_prompts"].clone().requires_grad_(), cls.clone().requires_grad_()
        values = {**tensors, "class_prompts": prompts}
        mixed = [method.scores(values, batch, place, own) @ prompts for place in range(len(method.layers))]
        torch.stack(mixed).sum().backward()

    def head() -> None:
        weight, own = tensors["head"].clone().requires_grad_(), features.clone().requires_grad_()
        torch.nn.functional.cross_entropy(own @ weight.T, client.labels).backward()

    best = best_times({"step": client.train, "mixing": mixing, "head": head}, seconds)
    shape = client.model.architecture
    return {
        "classes": job.classes,
        "step_milliseconds": 1e3 * best["step"],
        "mixing_share_of_step": best["mixing"] / best["step"],
        "head_share_of_step": best["head"] / best["step"],
        "mixing_share_of_forward_counted": mixing_macs(shape, job.classes) / plain_forward_macs(shape),
    }


def main() -> None:
    """Measure every number of classes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="timm/vit_tiny_patch16_224")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = circumstances("torch") | {"backbone": given.backbone, "runs": []}
    for classes in given.classes:
        job = BenchOptions(
            backbone=given.backbone,
            image_size=given.image_size,
            batch=given.batch,
            classes=classes,
            held=classes,
        )
        result["runs"].append(row := measure(job, given.seconds))
        print(
            f"{classes:>7,} classes  step {row['step_milliseconds']:8.1f} ms  "
            f"mixing {row['mixing_share_of_step']:7.3%} of it  head {row['head_share_of_step']:7.3%}  "
            f"counted {row['mixing_share_of_forward_counted']:.4%} of the forward pass"
        )
    result["load_after"] = os.getloadavg()[0]
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
