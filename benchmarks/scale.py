"""Whether a round costs the same whatever the number of clients, and what class prompts cost.

    python benchmarks/scale.py [--clients 100 10000 1000000] [--json scale.json]

Every size is a run of its own in a process of its own: digits drawn on demand by each client
(partition=drawn), a warm start and a final test of a sample. Shown are the median round, the time
that sampling takes, the start-up, and the peak memory; then the same for more clients per round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from machine import circumstances

import fedcue
from fedcue.clients.federation import load_federation
from fedcue.machine import peak_memory_mb
from fedcue.record.folder import RunFolder
from fedcue.rounds.executor import Executor
from fedcue.rounds.loop import Run
from fedcue.rounds.observers import Silent

SETTINGS = [
    "partition=drawn", "partition.train=20", "warm_start=20", "evaluation.every=0", "evaluation.clients=20",
    "heldout=0", "training.epochs=2", "training.batch_size=20", "snapshots=[]", "workers=1",
]  # fmt: skip


def one(clients: int, per_round: int, method: str, rounds: int) -> dict[str, Any]:
    """Run some rounds in this process and return what they took."""
    started = time.perf_counter()
    chosen = [f"method={method}", f"clients_per_round={per_round}", f"rounds={rounds}", *SETTINGS]
    config = fedcue.configure("default", [*chosen, f"partition.clients={clients}"])
    federation = load_federation(config)
    start_up = time.perf_counter() - started
    frozen: Any = federation.host.frozen
    view = frozen.view(frozen.images)
    for rows in torch.arange(len(view.slots)).split(64):  # so that no round pays for what later ones find
        view.prefix(rows)
    with tempfile.TemporaryDirectory() as folder, Executor(federation, 1) as executor:
        run_folder = RunFolder(Path(folder) / "run")
        run_folder.open()
        result = Run(executor, run_folder, Silent()).complete(resume=False)
        run_folder.close()
    started = time.perf_counter()
    for number in range(100):
        federation.roster.schedule.drawn(number)
    return {
        "method": method,
        "clients": clients,
        "clients_per_round": per_round,
        "seconds_per_round": statistics.median(record["seconds"] for record in result.rounds[:-1]),
        "best_round": min(record["seconds"] for record in result.rounds[:-1]),
        "sampling_milliseconds": 10 * (time.perf_counter() - started),
        "start_up_seconds": start_up,
        "peak_memory_mb": peak_memory_mb(),
    }


def measure(cases: list[tuple[int, int, str]], rounds: int, repeat: int) -> list[dict[str, Any]]:
    """Let the cases take turns, each in a process of its own; return the best of each number."""
    found: dict[tuple[int, int, str], list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(repeat):
        for case in cases:
            command = [sys.executable, __file__, "--one", *map(str, case), str(rounds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[case].append(json.loads(done.stdout.splitlines()[-1]))
    return [
        {key: min(run[key] for run in runs) if key not in ("method",) else runs[0][key] for key in runs[0]}
        for runs in found.values()
    ]


def main() -> None:
    """Measure, print a table and write the numbers if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 10_000, 1_000_000])
    parser.add_argument("--per-round", type=int, nargs="+", default=[5, 80])
    parser.add_argument("--methods", nargs="+", default=["pep", "pfedpg"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--one", nargs=4, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        clients, per_round, method, rounds = given.one
        print(json.dumps(one(int(clients), int(per_round), method, int(rounds))))
        return
    result: dict[str, Any] = circumstances("torch")
    cases = [(clients, given.per_round[0], method) for method in given.methods for clients in given.clients]
    cases += [(given.clients[-1], per_round, given.methods[0]) for per_round in given.per_round[1:]]
    result["runs"] = measure(cases, given.rounds, given.repeat)
    result["load_after"] = os.getloadavg()[0]
    for row in result["runs"]:
        print(
            f"{row['method']:8} {row['clients']:>9,} clients {row['clients_per_round']:>4} per round  "
            f"{row['seconds_per_round']:7.3f} s per round  sampling {row['sampling_milliseconds']:.2f} ms  "
            f"start {row['start_up_seconds']:5.2f} s  {row['peak_memory_mb']:5.0f} MiB"
        )
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
