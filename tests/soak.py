"""Kill runs at random moments and resume them to the same bits: ``python tests/soak.py --kills 200``."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from support import SMALL, without_times

import fedcue
from fedcue.record.folder import read_metrics
from fedcue.registry import METHODS

TINY = [
    "rounds=4",
    "data.train_per_class=6",
    "data.test_per_class=2",
    "evaluation.cls_sample=10",
    "snapshots=[]",
]
"""Settings that make a small run tiny: it is repeated many times."""
FILES = ("model.safetensors", "analysis.safetensors", "clients.csv")
"""Files of a run that must not differ by a bit."""


def config(method: str, *overrides: str) -> fedcue.RunConfig:
    return fedcue.configure("default", [*SMALL, *TINY, f"method={method}", *overrides])


def has_checkpoint(folder: Path) -> bool:
    return (folder / "config.toml").exists() and any((folder / "checkpoints").glob("round-*.ckpt"))


def work(method: str, folder: Path, die_at_file_operation: int | None) -> None:
    """In a child process: run or resume; perhaps die at the n-th rename or sync."""
    if die_at_file_operation is not None:
        left = [die_at_file_operation]
        for name in ("replace", "fsync"):
            original = getattr(os, name)

            def wrapped(*arguments: object, original: Callable[..., object] = original) -> object:
                left[0] -= 1
                if left[0] <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments)

            setattr(os, name, wrapped)
    resume = has_checkpoint(folder)
    fedcue.run(config(method), folder, resume=resume, overwrite=not resume)


def survive(method: str, folder: Path, kills: int, generator: random.Random, duration: float) -> Counter[str]:
    """Run to the end with at most ``kills`` kills on the way; count those that hit by when they did."""
    context = get_context("fork")
    hits: Counter[str] = Counter()
    while not (folder / "summary.json").exists():
        by_time = generator.random() < 0.5
        operation = None if by_time or hits.total() >= kills else generator.randint(1, 8)
        process = context.Process(target=work, args=(method, folder, operation))
        process.start()
        process.join(generator.uniform(0, duration) if by_time and hits.total() < kills else 240)
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        if process.exitcode == -signal.SIGKILL:
            when = "at a moment" if operation is None else "while writing"
            hits[when if has_checkpoint(folder) else "before the first checkpoint"] += 1
        else:
            assert process.exitcode == 0, f"{method} ended with {process.exitcode}"
    return hits


def assert_same_run(one: Path, other: Path) -> None:
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert without_times(read_metrics(one)) == without_times(read_metrics(other))


def soak(method: str, kills: int, folder: Path, seed: int = 0) -> Counter[str]:
    """Kill runs of a method until ``kills`` hit; every one of them must end with the same bits."""
    generator = random.Random(f"{method} {seed}")
    fedcue.run(config(method), folder / "first")  # the children inherit what was imported
    started = time.monotonic()
    whole = fedcue.run(config(method), folder / "whole")
    duration = time.monotonic() - started
    hits: Counter[str] = Counter()
    for attempt in range(60 + kills):
        if hits.total() >= kills:
            return hits
        killed = folder / f"killed-{attempt}"
        hits += survive(method, killed, kills - hits.total(), generator, duration)
        assert_same_run(whole.folder, killed)
    raise AssertionError("hardly a kill hits a run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="over all methods together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the counts here, as JSON")
    arguments = parser.parse_args()
    each = -(-arguments.kills // len(METHODS.builtin))
    table = {}
    for method in METHODS.builtin:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            table[method] = dict(soak(method, each, Path(folder), arguments.seed))
        print(f"{method:12} {each} kills survived: {table[method]}", end="", flush=True)
        print(f" ({time.monotonic() - started:.0f} s)", flush=True)
    total = sum(count for row in table.values() for count in row.values())
    print(f"{total} kills over {len(table)} methods, every run resumed to the same bits")
    if arguments.out:
        arguments.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
