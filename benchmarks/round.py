"""The same federated job as others would write it, on other engines, and as fedcue runs it, side by side.

``typical`` is what a researcher would write first: transformers' ViT, a DataLoader that decodes and
resizes every image in every epoch, and a model copied per client. ``tuned`` runs the plain blocks on
pixels kept in memory, one model for all; ``flower`` and ``pfl`` run ``tuned`` on those engines. Each
job is a process of its own; contenders take turns, start from the same values, see the same batches
and must end with the same parameters to 1e-4.

    python benchmarks/round.py --method fedvpt --backbone FOLDER --image-size 128 --root CIFAR100_FOLDER

The engines are optional: pip install torch==2.13.0 'flwr[simulation]==1.41.0' pfl==0.6.0
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from machine import circumstances, watched
from safetensors.torch import load_file
from task import difference

HERE = Path(__file__).parent
NEEDS = {"typical": "transformers", "tuned": "torch", "flower": "ray", "pfl": "pfl", "fedcue": "torch"}
TOLERANCE = 1e-4


def main() -> None:
    """Let the contenders take turns and print how they compare."""
    given = arguments()
    names = [name for name in given.contenders if importlib.util.find_spec(NEEDS[name])]
    for name in set(given.contenders) - set(names):
        print(f"{name} is left out: {NEEDS[name]} is not installed", file=sys.stderr)
    result = {
        **circumstances("torch", "transformers", "flwr", "ray", "pfl"),
        "settings": settings(given),
        "rounds": given.rounds,
        "workers": given.workers,
        **compare(names, given),
    }
    result["load_after"] = os.getloadavg()[0]
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contenders", nargs="+", default=list(NEEDS), choices=list(NEEDS))
    parser.add_argument("--method", default="fedvpt", choices=["fedvpt", "head"])
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--root", type=Path, default=None, help="CIFAR-100 folder (default: digits)")
    parser.add_argument("--images", type=int, default=20, help="training images of a class of CIFAR-100")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--clients", type=int, default=2, help="clients per round")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def settings(given: argparse.Namespace) -> list[str]:
    """Return the configuration as key=value."""
    chosen = [
        f"method={given.method}", f"backbone={given.backbone}", f"clients_per_round={given.clients}",
        f"workers={given.workers}", f"training.batch_size={given.batch}", f"training.epochs={given.epochs}",
    ]  # fmt: skip
    if given.image_size:
        chosen.append(f"backbone.image_size={given.image_size}")
    if given.root:
        chosen += [
            "data=cifar100", f"data.root={given.root}", f"data.train_per_class={given.images}",
            "data.test_per_class=2", "partition.classes_per_client=10",
            "training.head_lr=0.001", "training.prompt_lr=0.01",
        ]  # fmt: skip
    return chosen


def compare(names: list[str], given: argparse.Namespace) -> dict[str, Any]:
    """Return each contender's times and memory, and their ratios to fedcue's."""
    jobs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(given.repeat):
        for name in names:
            jobs[name].append(run(name, given))
    first = jobs["fedcue"][0]["values"]
    gaps = {name: max(difference(job["values"], first) for job in jobs[name]) for name in names}
    if max(gaps.values()) > TOLERANCE:
        raise SystemExit(f"the contenders disagree: {gaps}")
    table = {
        name: {
            "seconds_per_round": statistics.median(second for job in jobs[name] for second in job["rounds"]),
            "start_up_seconds": statistics.median(job["start_up"] for job in jobs[name]),
            "seconds_end_to_end": statistics.median(job["seconds"] for job in jobs[name]),
            "peak_memory_mb": statistics.median(job["memory"] for job in jobs[name]),
            "all_rounds": [job["rounds"] for job in jobs[name]],
            "all_end_to_end": [job["seconds"] for job in jobs[name]],
            "largest_difference_of_parameters": gaps[name],
        }
        for name in names
    }
    ratios = {
        key: {name: table[name][key] / table["fedcue"][key] for name in names}
        for key in ("seconds_per_round", "seconds_end_to_end", "peak_memory_mb")
    }
    return {"contenders": table, "times_fedcue": ratios}


def run(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Do one job in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.safetensors"
        sizes = [str(given.rounds), str(given.workers)]
        command = [str(HERE / "job.py"), name, *sizes, str(out), *settings(given)]
        started = time.time()
        with open(Path(folder) / "log", "wb") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path()}
            arguments = [sys.executable, *command]
            code, seconds, memory = watched(arguments, env=environment, stdout=log, stderr=log)
        if code:
            raise SystemExit((Path(folder) / "log").read_text()[-2000:] + f"{name} failed")
        tensors = load_file(out)
    spans = tensors.pop("spans")
    rounds = (spans[:, 1] - spans[:, 0]).tolist()
    start_up = float(spans[0, 0]) - started
    return {"seconds": seconds, "memory": memory, "rounds": rounds, "start_up": start_up, "values": tensors}


def path() -> str:
    """Return where a new process finds fedcue and these files."""
    import fedcue

    return os.pathsep.join([str(HERE), str(Path(fedcue.__file__).parents[1])])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
