"""A client's visit as others compute it and as fedcue does, turn by turn in one process of one thread.

On a machine that others use, too, speed changes from minute to minute. Here contenders take turns every few
seconds on the same client, in an order that moves on by one, and what counts is processor time: the mean of
the ratios within a turn, with its 95 % interval. Turns end when every interval is within ``--within``.

    python benchmarks/visits.py --backbone FOLDER --image-size 128 --root CIFAR100_FOLDER --method pep

``pfl`` takes part if it is installed: pip install pfl==0.6.0. Others' weights decay where no gradient is, so
nobody's do here. ``--nudge`` starts ``tuned`` a second time 1e-7 beside the same values: how far rounding
alone carries.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import scipy.stats
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
        f"method={given.method}", f"precision={given.precision}",
        f"backbone={given.backbone}", f"backbone.image_size={given.image_size}",
        "data=cifar100", f"data.root={given.root}", f"data.train_per_class={given.images}",
        "data.test_per_class=2", "partition.classes_per_client=10", "workers=1",
        f"training.batch_size={given.batch}", f"training.epochs={given.epochs}",
        f"training.head_lr={given.head_lr}", f"training.prompt_lr={given.prompt_lr}",
        "training.weight_decay=0",
    ]  # fmt: skip
    task = Task(fedcue.configure("default", settings))
    visits = {"typical": TypicalModel(task).visit, "tuned": task.tuned_visit, "fedcue": ours(task)}
    if importlib.util.find_spec("pfl"):
        import on_pfl

        visits["pfl"] = partial(on_pfl.visit, task)
    if given.nudge:
        visits["nudged"] = lambda client, round_, values: task.tuned_visit(
            client, round_, {name: tensor + 1e-7 for name, tensor in values.items()}
        )
    result = {
        **around,
        "settings": [setting.replace(str(given.root.parent), "PATH") for setting in settings],
        "method": given.method,
        "precision": given.precision,
        "contenders": compare(visits, task, given.turns, given.within),
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
    parser.add_argument("--method", default="fedvpt", choices=["fedvpt", "fedvpt_deep", "pep", "head"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--turns", type=int, default=40, help="at most")
    parser.add_argument("--within", type=float, default=0.03, help="half of the interval of a ratio")
    parser.add_argument("--nudge", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def ours(task: Task) -> Visit:
    """Return fedcue's visit."""
    host, method = load_federation(task.config).host, task.config.method
    known = {"prototypes": task.prototypes, "has_prototype": torch.ones(task.sizes.classes, dtype=torch.bool)}

    def visit(client: int, round_: int, values: Parameters) -> Parameters:
        state = ServerState(round_, values | (known if len(task.prototypes) else {}))
        download = Download(client, round_, method.download(state, client, task.sizes, task.config.seed))
        trained = host.train(download, ClientMemory())[0].tensors
        return {name: trained[name] for name in values}

    return visit


def compare(visits: dict[str, Visit], task: Task, turns: int, within: float) -> dict[str, dict[str, Any]]:
    """Return each contender's processor seconds, and its ratios to fedcue's of the same turn."""
    seconds: dict[str, list[float]] = {name: [] for name in visits}
    gaps, everyone = dict.fromkeys(visits, 0.0), task.schedule.training
    for turn in range(-1, turns):  # the first one warms up
        client = int(everyone[turn % len(everyone)])
        ends: dict[str, Parameters] = {}
        names = list(visits)
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            started = time.process_time()
            ends[name] = visits[name](client, max(turn, 0), task.start)
            if turn >= 0:
                seconds[name].append(time.process_time() - started)
        for name, end in ends.items():
            gaps[name] = max(gaps[name], difference(end, ends["tuned"]))
        reached = max(interval(ratios(seconds, name)) for name in visits) if turn >= 3 else math.inf
        print(f"turn {turn + 1}: +-{reached:.3f}", file=sys.stderr, flush=True)
        if reached < within:
            break
    return {
        name: {
            "median_seconds": statistics.median(own),
            "best_seconds": min(own),
            "times_fedcue": statistics.fmean(ratios(seconds, name)),
            "interval": interval(ratios(seconds, name)),
            "largest_difference_from_tuned": gaps[name],
            "all_seconds": own,
        }
        for name, own in seconds.items()
    }


def ratios(seconds: dict[str, list[float]], name: str) -> list[float]:
    """Return how many times as long as fedcue a contender took, turn by turn."""
    return [one / ours for one, ours in zip(seconds[name], seconds["fedcue"], strict=True)]


def interval(values: list[float]) -> float:
    """Return half of the 95 % interval of a mean."""
    quantile = float(scipy.stats.t.ppf(0.975, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


if __name__ == "__main__":
    main()
