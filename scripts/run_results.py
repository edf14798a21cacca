"""Make the runs that docs/results is made of, as many at a time as there are cores (see taskset).

    python scripts/run_results.py DATA BACKBONE RUNS docs/results/cpu    # DATA holds cifar100 and so on

What ``results_plan.toml`` lists is run in its order with the command line, tested again as it asks,
and its small files are kept (see ``results.py``). What is kept is not repeated, what was stopped goes on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from results import keep

from fedcue.config.layers import load

PLAN = Path(__file__).with_name("results_plan.toml")
FEDCUE = [sys.executable, "-m", "fedcue"]
COMMON = ["scale=cpu", "heldout=0.1", "workers=1", "evaluation.prototype_sample=0", "evaluation.cls_sample=0"]
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@dataclass(frozen=True)
class Planned:
    """One run of the plan, and the settings it is tested again with."""

    folder: str
    recipe: str
    common: tuple[str, ...]
    method: str
    seed: int
    settings: tuple[str, ...]
    again: tuple[tuple[str, ...], ...]

    def place(self, more: tuple[str, ...] = ()) -> Path:
        """Return the run's folder: FOLDER/METHOD[-KEY=VALUE...]-seedN."""
        changes = [text.partition("=") for text in (*self.settings, *more)]
        short = [f"{key.rpartition('.')[2]}={value.replace(' ', '')}" for key, _, value in changes]
        name = "-".join([self.method.rpartition(":")[2], *short])
        return Path(self.folder) / f"{name}-seed{self.seed}"

    def places(self) -> list[Path]:
        """Return all folders it leaves."""
        return [self.place(), *(self.place(more) for more in self.again)]


def planned() -> Iterator[Planned]:
    """Yield the runs of the plan in order, each of them once."""
    plan, seen = tomllib.loads(PLAN.read_text()), set()
    for entry in plan["runs"]:
        recipe, folder = entry["recipe"], entry.get("folder", entry["recipe"])
        common = tuple(text for name in ("all", *entry.get("common", [])) for text in plan["common"][name])
        variants = entry.get("variants", [[]])
        for seed, method, settings in product(entry.get("seeds", [0]), entry["methods"], variants):
            again = [*plan["again"].get(method, []), *entry.get("again", [])]
            run = Planned(folder, recipe, common, method, seed, tuple(settings), tuple(map(tuple, again)))
            if run.place() not in seen:
                seen.add(run.place())
                yield run


def make(run: Planned, data: Path, backbone: Path, runs: Path, kept: Path) -> str:
    """Do what is missing of one run, keep its small files, and remove the rest; return how it went."""
    if is_kept(run, kept):
        return "kept"
    folder, log = runs / run.place(), runs / f"{run.place()}.log"
    folder.parent.mkdir(parents=True, exist_ok=True)
    root = data / load(run.recipe).data.name
    settings = [*COMMON, *run.common, f"data.root={root}", f"backbone={backbone}", f"method={run.method}"]
    command = [*FEDCUE, "run", run.recipe, *settings, f"seed={run.seed}", *run.settings, "--out", str(folder)]
    resume = ["--resume"] * (folder / "config.toml").is_file()
    steps = [] if (folder / "summary.json").is_file() else [[*command, *resume]]
    steps += [
        [*FEDCUE, "evaluate", str(folder), *more, "--out", str(runs / run.place(more)), "--overwrite"]
        for more in run.again
    ]
    with log.open("a") as output:
        for step in steps:
            path = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
            code = subprocess.run(step, stdout=output, stderr=output, env=environment).returncode
            if code:
                return f"failed with exit code {code}, see {log}"
    for place in run.places():
        keep(runs / place, kept / place)
    if not is_kept(run, kept):
        return f"could not be kept, see {folder}"
    for place in run.places():
        shutil.rmtree(runs / place)
    return "done"


def is_kept(run: Planned, kept: Path) -> bool:
    """Tell whether nothing of a run is missing."""
    return all((kept / place / "summary.json").is_file() for place in run.places())


def main() -> None:
    """Run the plan."""
    data, backbone, runs, kept = map(Path, sys.argv[1:])
    todo = list(planned())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for run, how in zip(todo, pool.map(lambda r: make(r, data, backbone, runs, kept), todo), strict=True):
            print(f"{run.place()}: {how}", flush=True)
    if not all(is_kept(run, kept) for run in todo):
        raise SystemExit("Some runs are missing: mend what failed, then repeat.")


if __name__ == "__main__":
    main()
