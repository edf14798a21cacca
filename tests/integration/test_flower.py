"""Real processes on loopback: TLS, keys, three SuperNodes; killed, refused, misbehaving, resumed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support import SMALL

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from flower_deployment import Deployment, environment, until

import fedcue
from fedcue.clients.host import Host
from fedcue.errors import ClientError
from fedcue.record.folder import read_metrics

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]
SETTINGS = [
    *SMALL, "heldout=1", "snapshots=[]", "data.train_per_class=6", "data.test_per_class=2", "evaluation.every=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("deployment") / "here", 3)
    try:
        deployment.begin()
        yield deployment
    finally:
        deployment.close()


def simulated(folder: Path, settings: list[str], failed: set[tuple[int, int]]) -> Path:
    """Run the simulator with some clients failing in some rounds, and return its folder."""

    train = Host.train

    def failing(self: Host, download: Any, memory: Any) -> Any:
        if (download.client, download.round + 1) in failed:
            raise ClientError("it failed")
        return train(self, download, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "train", failing)
        return fedcue.run(fedcue.configure("default", settings), folder).folder


def failures(folder: Path) -> dict[tuple[int, int], str]:
    """Return why clients failed to train, by client and round."""
    return {
        (failure["client"], record["round"]): failure["reason"]
        for record in read_metrics(folder)
        for failure in record.get("failures", [])
        if failure["step"] == "train"
    }


def assert_same(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "clients.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_pep_on_three_nodes_ends_as_the_simulator_does(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run("pep", " ".join(SETTINGS))
    folder = deployment.result("pep")
    assert not failures(folder)
    assert_same(folder, simulated(tmp_path / "simulated", SETTINGS, set()))


@pytest.mark.parametrize("missing", ["key", "registration", "authority"])
def test_a_node_that_cannot_prove_itself_is_refused(
    deployment: Deployment, tmp_path: Path, missing: str
) -> None:
    node = tmp_path / "stranger"
    shutil.copytree(deployment.folder / "node-1", node, ignore=shutil.ignore_patterns("apps", "memory"))
    script = node / "supernode.sh"
    text = script.read_text()
    if missing == "key":
        text = text.replace("--auth-supernode-private-key node.key ", "")
    elif missing == "registration":
        from fedcue.flower.certificates import write_node_key

        (node / "node.key").unlink()
        write_node_key(node / "node.key", node / "node.pub")
    else:
        text = text.replace("--root-certificates ca.crt ", "")
    script.write_text(text.replace("exec flower-supernode", "exec flower-supernode --max-retries 1"))
    done = subprocess.run(
        [str(script)], env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0, done.stdout + done.stderr


def test_a_killed_supernode_is_left_out_and_comes_back(deployment: Deployment, tmp_path: Path) -> None:
    settings = [*SETTINGS, "method=pfedpg", "rounds=3", "clients_per_round=4"]
    before = deployment.log("node-2").count("Receiving: train message")
    deployment.run("killed-node", " ".join(settings), **{"round-timeout": 60})
    until(lambda: deployment.log("node-2").count("Receiving: train message") > before, "a round with node 2")
    deployment.kill("node-2")
    deployment.start_node(2)
    folder = deployment.result("killed-node")
    failed = failures(folder)
    assert failed
    assert {client % 3 for client, _ in failed} == {1}, "only node 2's clients failed"
    assert_same(folder, simulated(tmp_path / "simulated", settings, set(failed)))


def test_a_killed_superlink_is_resumed(deployment: Deployment, tmp_path: Path) -> None:
    """P-PT's prompts are on the nodes' disks, so the resumed run ends as one that was never stopped."""
    settings = [*SETTINGS, "method=ppt", "rounds=3"]
    deployment.run("killed-link", " ".join(settings))
    checkpoints = deployment.folder / "runs" / "killed-link" / "checkpoints"
    until((checkpoints / "round-000001.ckpt").exists, "the first round")
    deployment.kill("superlink")
    deployment.kill("run-killed-link")
    deployment.start_superlink()
    deployment.run("killed-link", " ".join(settings))
    folder = deployment.result("killed-link")
    assert_same(folder, simulated(tmp_path / "simulated", settings, set(failures(folder))))
    assert list(deployment.folder.glob("node-*/memory/*/client-*/round-*.safetensors"))


@pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'fedcue[flower-simulation]' to test it")
def test_flowers_own_simulator_ends_as_ours_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedcue", "flower", "simulate", "default", *SETTINGS]
    subprocess.run([*command, "--out", str(tmp_path / "flower")], env=environment(), timeout=600, check=True)
    assert_same(tmp_path / "flower", simulated(tmp_path / "simulated", SETTINGS, set()))


SPOILED = """
from dataclasses import replace
import torch
import fedcue.flower.client_app as client_app

honest = client_app._train

def spoiled(host, order):
    outcome = honest(host, order)
    head = outcome.tensors["head"]
    wrong = {0: head * float("nan"), 1: head[:1], 2: torch.zeros(3000, 3000)}
    return replace(outcome, tensors={**outcome.tensors, "head": wrong[order.client // 3 % 3]})

client_app._train = spoiled
"""


def test_a_bad_client_changes_nothing(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPOILED)
    deployment.kill("node-1")
    deployment.start_node(1, first=str(tmp_path))
    settings = [
        *SETTINGS,
        "method=fedvpt",
        "heldout=0",
        "partition.clients=7",
        "clients_per_round=7",
        "rounds=1",
    ]
    deployment.run("bad", " ".join(settings))
    folder = deployment.result("bad")
    reasons = failures(folder)
    assert "its update of head is not finite" in reasons[0, 1]
    assert "its head has shape [1, 128]" in reasons[3, 1]
    assert re.search(r"its reply holds 3600\d{4} bytes", reasons[6, 1])
    assert len(reasons) == 3
    assert_same(folder, simulated(tmp_path / "simulated", settings, set(reasons)))
    assert load_file(folder / "model.safetensors")["head"].isfinite().all()
