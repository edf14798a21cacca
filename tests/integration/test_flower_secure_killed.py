"""A real deployment with secure sums: six SuperNodes, of which one is killed in each step of one round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import SMALL

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from flower_deployment import JOINED, Deployment, until
from test_flower import failures, simulated

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]
CLIENTS, KILLED = 12, 5
SETTINGS = [
    *SMALL, "heldout=0", "snapshots=[]", "data.train_per_class=6", "data.test_per_class=2", "evaluation.every=0",
    "method=head", "rounds=1", f"partition.clients={CLIENTS}", f"clients_per_round={CLIENTS}",
    "aggregate=secure", "aggregate.threshold=0.5",
]  # fmt: skip

STUCK = """
import os, time
from pathlib import Path
from fedcue.flower.vault import Vault

begin, answer = Vault.begin, Vault.answer
step = int(os.environ["STUCK_AT"])

def reached(kind):
    if kind == step:
        Path(os.environ["STUCK_FILE"]).touch()
        time.sleep(600)

def stuck_begin(self, *rest):
    reply = begin(self, *rest)
    reached(reply[4])
    return reply

def stuck_answer(self, *rest):
    reply = answer(self, *rest)
    reached(reply[4])
    return reply

Vault.begin, Vault.answer = stuck_begin, stuck_answer
"""
"""A node that has done its step, and has not sent it yet, waits to be killed; odd numbers are clients' messages."""


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path / "here", KILLED + 1)
    try:
        deployment.init()
        (tmp_path / "sitecustomize.py").write_text(STUCK)
        deployment.start_superlink()
        assert deployment.start("register", "server/register.sh").wait(600) == 0
        for number in range(1, KILLED + 2):
            script = deployment.folder / f"node-{number}" / "supernode.sh"
            own = f"partition-id={number - 1} num-partitions={CLIENTS if number <= KILLED else 1}"
            text = script.read_text()
            assert f"partition-id={number - 1} num-partitions={KILLED + 1}" in text
            script.write_text(text.replace(f"partition-id={number - 1} num-partitions={KILLED + 1}", own))
            more = {"STUCK_AT": str(2 * number - 1), "STUCK_FILE": str(tmp_path / f"stuck-{number}")}
            deployment.start(f"node-{number}", f"node-{number}/supernode.sh", first=str(tmp_path), **more)
        names = [f"node-{number}" for number in range(1, KILLED + 2)]
        until(lambda: all(JOINED in deployment.log(name) for name in names), "all nodes to join")
        yield deployment
    finally:
        deployment.close()


def test_a_node_is_killed_in_each_step_and_the_sum_is_right(deployment: Deployment, tmp_path: Path) -> None:
    """Nodes 1 to 5 have a client each and node 6 has seven, which are the fewest that a sum needs."""
    limits = {"round-timeout": 300, "step-timeout": 150, "node-timeout": 30}
    deployment.run("secure", " ".join(SETTINGS), **limits)
    for number in range(1, KILLED + 1):
        until((tmp_path / f"stuck-{number}").exists, f"node {number} to reach its step")
        deployment.kill(f"node-{number}")
    folder = deployment.result("secure")
    assert {client for client, _ in failures(folder)} == {0, 1, 2}
    expected = simulated(tmp_path / "simulated", SETTINGS, set(failures(folder)))
    assert (folder / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    untested = json.loads((folder / "summary.json").read_text())["untested"]
    assert {failure["client"] for failure in untested} == set(range(KILLED))
