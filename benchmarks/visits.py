"""A client's visit as others compute it and as fedcue does, turn by turn in one process of one thread.

On a machine that others use, too, speed changes from minute to minute. Here contenders take turns every few
seconds on the same client, and what counts is the median of the ratios within a turn.

    python benchmarks/visits.py --backbone FOLDER --image-size 128 --root CIFAR100_FOLDER

``--nudge`` starts ``tuned`` a second time 1e-7 beside the same values: how far rounding alone carries.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contenders import TypicalModel
from machine import circumstances
from task import Parameters, Task, difference

import fedcue
from fedcue.clients.federation import load_federation
from fedcue.types import ClientMemory, Download, ServerState

Visit = Callable[[int, int, Parameters], Parameters]


def main() -> None:
    """Let the contenders visit clients in turn and print how they compare."""
    given = arguments()
    torch.set_num_threads(1)
    around = circumstances("torch", "transformers")
    settings = [
        "method=fedvpt", f"backbone={given.backbone}", f"backbone.image_size={given.image_size}",
        "data=cifar100", f"data.root={given.root}", f"data.train_per_class={given.images}",
        "data.test_per_class=2", "partition.classes_per_client=10", "workers=1",
        f"training.batch_size={given.batch}", f"training.epochs={given.epochs}",
        f"training.head_lr={given.head_lr}", f"training.prompt_lr={given.prompt_lr}",
    ]  # fmt: skip
    task = Task(fedcue.configure("default", settings))
    visits = {"typical": TypicalModel(task).visit, "tuned": task.tuned_visit, "fedcue": ours(task)}
    if given.nudge:
        visits["nudged"] = lambda client, round_, values: task.tuned_visit(
            client, round_, {name: tensor + 1e-7 for name, tensor in values.items()}
        )
    result = {
        **around,
        "settings": [setting.replace(str(given.root.parent), "PATH") for setting in settings],
        "contenders": compare(visits, task, given.turns),
        "load_after": os.getloadavg()[0],
    }
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--root", type=Path, required=True, help="CIFAR-100 folder")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--images", type=int, default=10, help="training images of a class")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--head-lr", type=float, default=0.0005)
    parser.add_argument("--prompt-lr", type=float, default=0.01)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--nudge", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def ours(task: Task) -> Visit:
    """Return fedcue's visit."""
    host, method = load_federation(task.config).host, task.config.method

    def visit(client: int, round_: int, values: Parameters) -> Parameters:
        sent = method.download(ServerState(round_, values), client, task.sizes, task.config.seed)
        download = Download(client, round_, sent)
        return dict(host.train(download, ClientMemory())[0].tensors)

    return visit


def compare(visits: dict[str, Visit], task: Task, turns: int) -> dict[str, dict[str, Any]]:
    """Return each contender's seconds, and its ratios to fedcue's of the same turn."""
    seconds: dict[str, list[float]] = {name: [] for name in visits}
    gaps = dict.fromkeys(visits, 0.0)
    for turn in range(turns):
        client = int(task.training_clients[turn % len(task.training_clients)])
        ends: dict[str, Parameters] = {}
        for name, visit in visits.items():
            started = time.perf_counter()
            ends[name] = visit(client, turn, task.start)
            seconds[name].append(time.perf_counter() - started)
        for name, end in ends.items():
            gaps[name] = max(gaps[name], difference(end, ends["tuned"]))
    return {
        name: {
            "median_seconds": statistics.median(own),
            "best_seconds": min(own),
            "times_fedcue": statistics.median(a / b for a, b in zip(own, seconds["fedcue"], strict=True)),
            "largest_difference_from_tuned": gaps[name],
            "all_seconds": own,
        }
        for name, own in seconds.items()
    }


if __name__ == "__main__":
    main()
