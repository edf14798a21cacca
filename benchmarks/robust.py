"""Accuracy when 2 of 10 clients send bad updates: ``python benchmarks/robust.py OUT.json``.

The default recipe with 10 clients per round. In every round the first ``--attackers`` sampled clients attack:
they send the negative of their change (``flip``) or 100 times it (``scale``), and do the same to
their centroids; before round 0 those of the first round do. Attackers are still tested like all others.
Beside that ``silent``: they send nothing, which is the best that leaving them out can do.

``lie`` is about class statistics alone: the same clients train as they should, but claim to hold all classes
and send for each ten times the true mean of the next one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedcue.clients.federation import Federation, load_federation
from fedcue.clients.host import Host
from fedcue.config.layers import load
from fedcue.config.settings import RunConfig
from fedcue.errors import ClientError
from fedcue.privacy.budget import Schedule
from fedcue.record.folder import RunFolder
from fedcue.rounds.executor import Executor
from fedcue.rounds.loop import Run
from fedcue.rounds.observers import Silent
from fedcue.types import ClientMemory, Download, Tensors, Update

ATTACKS = {"none": 1.0, "flip": -1.0, "scale": 100.0, "silent": None, "lie": 1.0}
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


def lying(update: Update, truth: Tensor) -> Update:
    """Claim to hold every class, and send ten times the true centroid ``truth [L, C, d]`` of the next one."""
    holds = update.tensors["holds"]
    count = update.samples // len(holds) if holds.dtype == torch.int64 else 1
    false = {"holds": torch.full_like(holds, count), "centroids": 10 * count * truth.roll(-1, 1)}
    return replace(update, tensors={**update.tensors, **false})


class HostileHost(Host):
    """Clients of which some multiply what they send, or lie about their classes."""

    attack: str
    attackers: int
    schedule: Schedule
    truth: Tensor | None = None

    def train(self, download: Download, memory: ClientMemory) -> tuple[Update, ClientMemory]:
        """Train a client; the first ones of each round's sample attack."""
        update, memory = super().train(download, memory)
        if download.client in self.schedule.drawn(download.round)[: self.attackers]:
            update = self.attacked(update, download.tensors)
        return update, memory

    def warm_up(self, client: int) -> Update | None:
        """Ask a client before round 0; the attackers of the first round attack here, too."""
        reply = super().warm_up(client)
        if reply is None or client not in self.schedule.drawn(0)[: self.attackers]:
            return reply
        return None if ATTACKS[self.attack] is None else self.attacked(reply, {})

    def attacked(self, update: Update, sent: Tensors) -> Update:
        """Return what an attacker sends in place of its update."""
        factor = ATTACKS[self.attack]
        if factor is None:
            raise ClientError("it is silent")
        if self.attack != "lie":
            return corrupted(update, sent, factor)
        if self.truth is None:
            self.truth = self.true_centroids()
        return lying(update, self.truth)

    def true_centroids(self) -> Tensor:
        """Return the mean centroid of each class over its holders before round 0, which a liar may know."""
        replies = [super(HostileHost, self).warm_up(int(client)) for client in self.schedule.training]
        tensors = [reply.tensors for reply in replies if reply is not None]
        total = torch.stack([own["centroids"] for own in tensors]).sum(0)
        return total / torch.stack([own["holds"] for own in tensors]).sum(0).clamp(min=1)[:, None]


def hostile(config: RunConfig, attack: str, attackers: int) -> Federation:
    """Return a federation some of whose clients attack."""
    federation = load_federation(config)
    own = federation.host
    host = HostileHost(own.config, own.clients, own.places, own.frozen, own.sizes, own.protection)
    host.attack, host.attackers, host.schedule = attack, attackers, federation.roster.schedule
    return replace(federation, host=host)


def accuracy(settings: list[str], attack: str, attackers: int) -> dict[str, float]:
    """Run the default recipe under attack; return the final accuracies."""
    config = load("default", ["clients_per_round=10", "evaluation.every=0", "snapshots=[]", *settings])
    federation = hostile(config, attack, attackers)
    with tempfile.TemporaryDirectory() as out, Executor(federation, config.workers) as executor:
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
    parser.add_argument("--attackers", type=int, default=2)
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
                result = accuracy(settings, attack, arguments.attackers)
                about = {"seed": seed, "rule": rule, "attack": attack, "attackers": arguments.attackers}
                rows.append({**about, **result})
                print(*rows[-1].values(), f"{time.perf_counter() - started:.0f} s", flush=True)
                arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
