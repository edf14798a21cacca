"""Seconds of a round on a real deployment beside the simulator's: ``python benchmarks/flower_seconds.py``.

Starts a SuperLink with TLS and three SuperNodes on this machine, runs a few rounds of the default recipe on
them, and the same in the simulator; both must end with the same parameters.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import fedcue
from fedcue.record.folder import read_metrics

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from flower_deployment import Deployment

NODES = 3


def main() -> None:
    """Measure the methods asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=["pep", "fedvpt"])
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    print("| method | deployed, s per round | simulator, s per round |\n|---|---:|---:|")
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
                deployment.run(method, " ".join(settings))
                deployed = deployment.result(method)
                simulated = fedcue.run(
                    fedcue.configure("default", [*settings, "workers=1"]), Path(folder) / method
                ).folder
                if read_model(deployed) != read_model(simulated):
                    raise SystemExit(f"{method}: the deployment and the simulator disagree")
                print(f"| {method} | {median(deployed):.1f} | {median(simulated):.1f} |", flush=True)
        finally:
            deployment.close()


def median(folder: Path) -> float:
    """Return the median seconds of a run's rounds but the last, which is tested, too."""
    return statistics.median(record["seconds"] for record in read_metrics(folder)[:-1])


def read_model(folder: Path) -> bytes:
    """Return the trained model's bytes."""
    return (folder / "model.safetensors").read_bytes()


if __name__ == "__main__":
    main()
