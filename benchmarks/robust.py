"""Accuracy when 2 of 10 clients send bad updates: ``python benchmarks/robust.py OUT.json``.

The default recipe with 10 clients per round. In every round the first two sampled clients attack:
they send the negative of their change (``flip``) or 100 times it (``scale``), and do the same to
their centroids; before round 0 every fifth client does. Attackers are still tested like all others.
Beside that ``silent``: they send nothing, which is the best that leaving them out can do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from fedcue.clients.federation import Federation
from fedcue.clients.sampling import sample_clients
from fedcue.config.layers import load
from fedcue.config.settings import RunConfig
from fedcue.errors import ClientError
from fedcue.record.folder import RunFolder
from fedcue.rounds.executor import Executor
from fedcue.rounds.loop import Run
from fedcue.rounds.observers import Silent
from fedcue.types import ClientMemory, Download, Tensors, Update

ATTACKERS = 2
ATTACKS = {"none": 1.0, "flip": -1.0, "scale": 100.0, "silent": None}
RULES = {
    "mean": ["aggregate=mean"],
    "mean, norm bound": ["aggregate=mean", "aggregate.norm_bound=median"],
    "trimmed mean": ["aggregate=trimmed_mean"],
    "median": ["aggregate=median"],
    "krum": ["aggregate=krum"],
}


def corrupted(update: Update, sent: Tensors, factor: float) -> Update:
    """Multiply every change, and every tensor that is no change, by ``factor``."""
    tensors = dict(update.tensors)
    for name, tensor in update.tensors.items():
        if tensor.is_floating_point():
            start = sent.get(name, torch.zeros_like(tensor))
            tensors[name] = start + factor * (tensor - start)
    return replace(update, tensors=tensors)


class Hostile(Federation):
    """A federation in which some clients multiply what they send."""

    def __init__(self, config: RunConfig, factor: float | None) -> None:
        super().__init__(config)
        self.factor = factor

    def train(self, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train a client; the first ones of each round's sample attack."""
        update, memory = super().train(download, memory)
        sampled = sample_clients(self.training_clients, self.config, download.round)
        if download.client not in sampled[:ATTACKERS]:
            return update, memory
        if self.factor is None:
            raise ClientError("it is silent")
        return corrupted(update, download.tensors, self.factor), memory

    def warm_up(self, client: int) -> Update | None:
        """Ask a client before round 0; every fifth one attacks."""
        reply = super().warm_up(client)
        if reply is None or client not in self.training_clients[::5]:
            return reply
        return None if self.factor is None else corrupted(reply, {}, self.factor)


def accuracy(settings: list[str], factor: float | None) -> dict[str, float]:
    """Run the default recipe under attack; return the final accuracies."""
    config = load("default", ["clients_per_round=10", "evaluation.every=0", "snapshots=[]", *settings])
    with tempfile.TemporaryDirectory() as out, Executor(Hostile(config, factor), config.workers) as executor:
        folder = RunFolder(Path(out) / "run")
        folder.open()
        summary = Run(executor, folder, Silent()).complete(resume=False).summary
        folder.close()
    return {name: summary[name] for name in ("mean_accuracy", "worst_accuracy", "heldout_mean_accuracy")}


def main() -> None:
    """Run every rule under every attack and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("settings", nargs="*", help="more key=value settings")
    arguments = parser.parse_args()
    rows = []
    for seed in arguments.seeds:
        for rule in arguments.rules:
            for attack in arguments.attacks:
                if attack == "silent" and rule != "mean":
                    continue
                started = time.perf_counter()
                settings = [*RULES[rule], f"seed={seed}", *arguments.settings]
                result = accuracy(settings, ATTACKS[attack])
                rows.append({"seed": seed, "rule": rule, "attack": attack, **result})
                print(*rows[-1].values(), f"{time.perf_counter() - started:.0f} s", flush=True)
                arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
