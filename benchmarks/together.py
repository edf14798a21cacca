"""Clients of a round one by one and in one batch: ``python benchmarks/together.py --backbone FOLDER``.

Ways take turns on the same clients, and what counts is the median of the ratios within a turn. On a CPU
time is that of the process (of one thread), so that others on the machine count less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from machine import circumstances

import fedcue
from fedcue.clients.federation import load_federation
from fedcue.rounds.engine import Failure
from fedcue.rounds.executor import Executor
from fedcue.types import ClientMemory, Download, ServerState


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--images", type=int, default=50, help="training images of a client")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--batches", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| batch | clients in one | images/s | times one by one |\n|---:|---:|---:|---:|")
    for batch in given.batches:
        measure(given, batch)
    print(circumstances("torch"))


def measure(given: argparse.Namespace, batch: int) -> None:
    """Print the rows of one size of batch."""
    federation = load_federation(fedcue.configure("default", [
        "method=pep", f"backbone={given.backbone}", f"backbone.image_size={given.image_size}",
        "partition=iid", f"partition.clients={given.clients}", f"data.train_per_class={given.clients * 5}",
        "data.test_per_class=1", f"training.batch_size={batch}", "training.epochs=1", "workers=1",
        f"device={given.device}", f"clients_per_round={given.clients}",
    ]))  # fmt: skip
    roster, images = federation.roster, int(federation.roster.train_sizes[: given.clients].sum())
    with Executor(federation, 1) as executor:
        adding = roster.protection.adding({}, "warm up")
        for reply in executor.warm_up(range(given.clients)):
            if isinstance(reply, Failure):
                raise SystemExit(reply.reason)
            adding.add(reply)
        state = ServerState(0, roster.method.start(roster.sizes, 0, adding.sums()).tensors)
        sent = [roster.method.download(state, c, roster.sizes, 0) for c in range(given.clients)]
        jobs = [(Download(c, 0, tensors), ClientMemory()) for c, tensors in enumerate(sent)]
        seconds: dict[int, list[float]] = {number: [] for number in given.together}
        for turn in range(given.turns + 1):
            for number in given.together:
                executor.together = number
                taken = clocked(given.device, lambda: list(executor.train(jobs)))
                seconds[number] += [taken] * (turn > 0)
    for number, own in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds[given.together[0]], own, strict=True))
        rate = images / statistics.median(own)
        print(f"| {batch} | {number} | {rate:.1f} | {ratio:.2f} |", flush=True)


def clocked(device: str, work: Callable[[], object]) -> float:
    """Return how many seconds some work takes."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    started = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return clock() - started


if __name__ == "__main__":
    main()
