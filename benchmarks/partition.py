"""Time the partitions, next to flwr-datasets' where it is installed.

    python benchmarks/partition.py [--repeat 5] [--json FILE]

Both share the labels of a dataset as large as CIFAR-100 (50,000 training images, 100 classes) out among 100
clients, in turns within one run, so that a busy machine slows both. Ours also shares out 10,000 test images.
The peer's time is that of its first ``load_partition``, in which it decides who gets what.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import NoImages
from fedcue.data.partition import IID, Dirichlet, PartitionOptions, Pathological
from fedcue.rng import rng

CASES: dict[str, Callable[[int], PartitionOptions]] = {
    "iid": lambda clients: IID(clients=clients),
    "pathological": lambda clients: Pathological(clients=clients, classes_per_client=10),
    "dirichlet equal": lambda clients: Dirichlet(clients=clients, alpha=0.3),
    "dirichlet class": lambda clients: Dirichlet(clients=clients, alpha=0.3, flavour="class"),
}


def balanced(classes: int, train: int, test: int) -> Dataset:
    """Return a dataset without images: ``train`` and ``test`` images of each class in random order."""
    labels = np.concatenate([np.repeat(np.arange(classes), train), np.repeat(np.arange(classes), test)])
    order = rng(0, "order").permutation(len(labels))
    is_test = (np.arange(len(labels)) >= classes * train)[order]
    names = tuple(str(label) for label in range(classes))
    return Dataset("made", names, labels[order], is_test, NoImages("made", len(labels)))


def peers() -> dict[str, Callable[[Any], Any]]:
    """Return flwr-datasets' partitioners for the same settings, or nothing if it is not installed."""
    try:
        from flwr_datasets import partitioner
    except ImportError:
        print("flwr-datasets is not installed: no comparison (pip install flwr-datasets)")
        return {}

    def pathological(clients: int) -> Any:
        return partitioner.PathologicalPartitioner(
            num_partitions=clients, partition_by="label", num_classes_per_partition=10
        )

    def dirichlet(clients: int) -> Any:
        return partitioner.DirichletPartitioner(num_partitions=clients, partition_by="label", alpha=0.3)

    return {"pathological": pathological, "dirichlet class": dirichlet, "dirichlet equal": dirichlet}


def time_ours(rule: PartitionOptions, dataset: Dataset, seed: int) -> float:
    """Return the seconds one partition takes."""
    started = time.perf_counter()
    rule.split(dataset, rng(seed, "partition"))
    return time.perf_counter() - started


def time_peer(make: Callable[[int], Any], dataset: Dataset, clients: int) -> float:
    """Return the seconds until the peer can hand out its first client."""
    from datasets import Dataset as Table

    partitioner = make(clients)
    partitioner.dataset = Table.from_dict({"label": dataset.labels[dataset.train]})
    started = time.perf_counter()
    partitioner.load_partition(0)
    return time.perf_counter() - started


def measure(dataset: Dataset, clients: int, repeat: int, compare: bool) -> dict[str, dict[str, float]]:
    """Time every case ``repeat`` times, ours and the peer's in turns; returns medians in seconds."""
    theirs = peers() if compare else {}
    results = {}
    for case, make in CASES.items():
        ours_times, peer_times = [], []
        for seed in range(repeat):
            ours_times.append(time_ours(make(clients), dataset, seed))
            if case in theirs:
                peer_times.append(time_peer(theirs[case], dataset, clients))
        results[case] = {"ours": statistics.median(ours_times)}
        if peer_times:
            results[case]["peer"] = statistics.median(peer_times)
            results[case]["ratio"] = results[case]["peer"] / results[case]["ours"]
    return results


def main() -> None:
    """Measure, print a table and write the numbers as JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5, help="how often each case is timed")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    arguments = parser.parse_args()
    results = {
        "50,000 labels, 100 classes, 100 clients": measure(
            balanced(100, 500, 100), 100, arguments.repeat, compare=True
        ),
        "120,300 labels, 1,203 classes, 1,018 clients": measure(
            balanced(1203, 100, 30), 1018, arguments.repeat, compare=False
        ),
    }
    for setting, cases in results.items():
        print(setting)
        for case, seconds in cases.items():
            line = f"  {case:<16} {seconds['ours']:8.3f} s"
            if "peer" in seconds:
                line += f"   flwr-datasets {seconds['peer']:8.3f} s   {seconds['ratio']:6.0f} times faster"
            print(line)
    if arguments.json:
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        written = {"machine": platform.machine(), "versions": versions, "median_seconds": results}
        arguments.json.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
