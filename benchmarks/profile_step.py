"""Where the time of a training step goes: products, attention, and what only moves memory.

python benchmarks/profile_step.py [--backbone NAME --image-size N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from pathlib import Path

import torch
from machine import circumstances
from torch.profiler import ProfilerActivity, profile

from fedcue.plan.bench import BenchClient, BenchOptions

KINDS = {
    "matrix products": ("addmm", "aten::mm", "bmm", "linear"),
    "attention": ("attention", "flash"),
    "GELU": ("gelu",),
    "layer norms": ("layer_norm", "batch_norm"),
    "sums, copies and joins": ("add", "copy", "cat", "clone", "slice", "index", "mul", "fill", "zero", "sum"),
}


def kind_of(name: str) -> str:
    """Return what kind of work an operator does."""
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "the rest")


def main() -> None:
    """Profile some steps and print each kind's share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="timm/vit_tiny_patch16_224")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    around = circumstances()
    client = BenchClient(
        BenchOptions(backbone=given.backbone, image_size=given.image_size, batch=given.batch)
    )
    client.train()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(given.steps):
            client.train()
    times: Counter[str] = Counter()
    for event in recorded.key_averages():
        times[kind_of(event.key)] += event.self_cpu_time_total
    shares = {kind: time / sum(times.values()) for kind, time in times.most_common()}
    for kind, share in shares.items():
        print(f"{kind:24} {share:6.1%}")
    if given.json:
        result = {**around, "load_after": os.getloadavg()[0], "backbone": given.backbone, "shares": shares}
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
