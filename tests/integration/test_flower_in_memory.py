"""All methods over an in-memory grid with real serialisation end as the simulator does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import SMALL

pytest.importorskip("flwr")

from memory_grid import MemoryGrid, nodes
from test_run import without_times

import fedcue
from fedcue.federate.observer import Silent
from fedcue.flower.server_app import Deployment, serve
from fedcue.record.folder import read_metrics
from fedcue.registry import METHODS

SETTINGS = [*SMALL, "heldout=1", "snapshots=[]", "data.train_per_class=6", "data.test_per_class=2"]


def deployment(out: Path, *settings: str, **more: object) -> Deployment:
    return Deployment.of(
        {
            "settings": " ".join([*SETTINGS, *settings]),
            "out": str(out),
            "poll": 0.001,
            "node_timeout": 1.0,
            **more,
        }
    )


@pytest.mark.parametrize("method", METHODS.builtin)
def test_every_method_ends_as_in_the_simulator_bit_for_bit(method: str, tmp_path: Path) -> None:
    expected = fedcue.run(
        fedcue.configure("default", [*SETTINGS, f"method={method}"]), tmp_path / "simulated"
    )
    grid = MemoryGrid(nodes(2, tmp_path))
    result = serve(grid, deployment(tmp_path / "deployed", f"method={method}"), Silent())
    for name in ("model.safetensors", "clients.csv"):
        assert (result.folder / name).read_bytes() == (expected.folder / name).read_bytes(), name
    assert without_times(read_metrics(result.folder)) == without_times(read_metrics(expected.folder))
    assert result.mean_accuracy == expected.mean_accuracy
    assert json.loads((result.folder / "model.json").read_text())["clients"]["0"] == {"name": "client-0"}
