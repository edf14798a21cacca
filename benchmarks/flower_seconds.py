"""Seconds of a round on a real deployment beside the simulator's: ``python benchmarks/flower_seconds.py``.

Starts a SuperLink with TLS and three SuperNodes on this machine, runs a few rounds of the default recipe on
them, and the same in the simulator; both must end with the same parameters. Processor time is that of all
processes of the nodes, which counts on a machine that others use, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import fedcue
from fedcue.record.folder import read_metrics

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from flower_deployment import Deployment

TICKS = os.sysconf("SC_CLK_TCK")
NODES = 3


def main() -> None:
    """Measure the methods asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=["pep", "fedvpt"])
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    print("| method | deployed, s per round | nodes, processor s | simulator, s per round | processor s |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(Path(folder) / "deployment", NODES)
        try:
            deployment.begin()
            for method in given.methods:
                settings = [
                    f"method={method}",
                    f"rounds={given.rounds}",
                    "evaluation.every=0",
                    "snapshots=[]",
                ]
                nodes = Meter(
                    [deployment.processes[f"node-{number}"].pid for number in range(1, NODES + 1)],
                    deployment.folder / "runs" / method / "metrics.jsonl",
                )
                deployment.run(method, " ".join(settings))
                deployed = deployment.result(method)
                work = nodes.per_round()
                started, before = time.process_time(), 0.0
                simulated = fedcue.run(
                    fedcue.configure("default", [*settings, "workers=1"]), Path(folder) / method
                ).folder
                before = (time.process_time() - started) / given.rounds
                if read_model(deployed) != read_model(simulated):
                    raise SystemExit(f"{method}: the deployment and the simulator disagree")
                times = f"{median(deployed):.1f} | {work:.1f} | {median(simulated):.1f} | {before:.1f}"
                print(f"| {method} | {times} |", flush=True)
        finally:
            deployment.close()


class Meter(threading.Thread):
    """Adds up the processor time of all processes of some sessions, round by round of a run."""

    def __init__(self, sessions: list[int], metrics: Path) -> None:
        super().__init__(daemon=True)
        self.sessions, self.metrics = {str(session) for session in sessions}, metrics
        self.seconds: dict[str, float] = {}
        self.at_round: list[float] = []
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        """Look at every process again and again; one that ends has been seen shortly before."""
        while not self.over.wait(0.05):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    words = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                if words[3] in self.sessions:
                    self.seconds[folder.name + words[19]] = (int(words[11]) + int(words[12])) / TICKS
            rounds = len(self.metrics.read_text().splitlines()) if self.metrics.is_file() else 0
            if rounds > len(self.at_round):
                self.at_round += [sum(self.seconds.values())] * (rounds - len(self.at_round))

    def per_round(self) -> float:
        """Return the median of all rounds but the first and the last, which is tested, too."""
        self.over.set()
        self.join()
        spans = [after - before for before, after in zip(self.at_round, self.at_round[1:-1], strict=False)]
        return statistics.median(spans)


def median(folder: Path) -> float:
    """Return the median seconds of a run's rounds but the last, which is tested, too."""
    return statistics.median(float(record["seconds"]) for record in read_metrics(folder)[:-1])


def read_model(folder: Path) -> bytes:
    """Return the trained model's bytes."""
    return (folder / "model.safetensors").read_bytes()


if __name__ == "__main__":
    main()
