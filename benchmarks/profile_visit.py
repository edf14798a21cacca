"""Where the time of a client's visit goes, by part: ``python benchmarks/profile_visit.py --backbone FOLDER``.

Every part is a function of the package, timed from outside; a part within another counts for itself. Time is
that of the process on its core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import circumstances

import fedcue
from fedcue.clients.federation import load_federation
from fedcue.methods import pep
from fedcue.model.frozen_cache import FrozenView
from fedcue.rounds import simulator
from fedcue.train import sgd
from fedcue.types import ClientMemory, Download, ServerState

PARTS: dict[str, tuple[Any, str]] = {
    "tokens and projections from the cache": (FrozenView, "prefix"),
    "centroids under the broadcast state": (pep.PEP, "reply"),
    "forward pass": (pep.PEP, "logits"),
    "backward pass": (torch.Tensor, "backward"),
    "clipping": (torch.nn.utils, "clip_grad_norm_"),
    "optimiser": (sgd, "_step"),
    "bytes to tensors": (simulator, "unpack"),
    "the rest": (simulator, "train"),
}


def main() -> None:
    """Let a client visit some times and print the share of each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--visits", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    federation = load_federation(fedcue.configure("default", [
        "method=pep", f"backbone={given.backbone}", f"backbone.image_size={given.image_size}",
        "partition=iid", "partition.clients=3", "data.train_per_class=15", "data.test_per_class=1",
        f"training.batch_size={given.batch}", f"training.epochs={given.epochs}", "workers=1",
        "clients_per_round=1",
    ]))  # fmt: skip
    visit = visits_of(federation)
    visit()  # fills the cache
    times: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for name, (place, function) in PARTS.items():
        setattr(place, function, timed(name, getattr(place, function), times))
    for _ in range(given.visits):
        visit()
    whole = sum(times.values())
    print("| part | of a visit |\n|---|---:|")
    for name, seconds in sorted(times.items(), key=lambda part: -part[1]):
        print(f"| {name} | {seconds / whole:.1%} |")
    print(f"{whole / given.visits:.2f} s a visit; {circumstances('torch')}")


def visits_of(federation: Any) -> Callable[[], object]:
    """Return what lets client 0 visit, as a worker does it."""
    roster = federation.roster
    adding = roster.protection.adding({}, "warm up")
    adding.add(federation.host.warm_up(0))
    state = ServerState(0, roster.method.start(roster.sizes, 0, adding.sums()).tensors)
    sent = Download(0, 0, roster.method.download(state, 0, roster.sizes, 0))
    job = (simulator._packed(sent), simulator._packed(ClientMemory()))
    simulator.let_work(federation.host)
    return lambda: simulator.train([0], [job])


def timed(name: str, function: Callable[..., Any], times: dict[str, float]) -> Callable[..., Any]:
    """Return the function with a clock: what it calls that has a clock too is not counted twice."""

    def clocked(*given: Any, **named: Any) -> Any:
        started, others = time.process_time(), sum(times.values())
        try:
            return function(*given, **named)
        finally:
            within = sum(times.values()) - others
            times[name] += time.process_time() - started - within

    return clocked


if __name__ == "__main__":
    main()
