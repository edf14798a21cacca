"""The three runs promised on real files with the real ViT-Ti, shrunk to a test; skipped where they are not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support import REAL_BACKBONE, SHARED_DATA, needs_real_backbone
from typer.testing import CliRunner

from fedcue.cli.main import app

RUNS = {
    "cifar100-pathological": ("cifar100", ["partition.clients=10"], 10),
    "tinyimagenet-pathological": ("tiny-imagenet", ["partition.clients=20"], 20),
    "pacs": ("pacs", ["partition.clients_per_domain=2"], 8),
}
SHRUNK = [
    "rounds=1",
    "clients_per_round=1",
    "data.train_per_class=2",
    "data.test_per_class=1",
    "training.epochs=1",
    "warm_start=1",
    "evaluation.cls_sample=0",
    "workers=1",
]


@needs_real_backbone
@pytest.mark.parametrize("recipe", RUNS)
def test_a_small_run_on_real_files(recipe: str, tmp_path: Path) -> None:
    folder, settings, clients = RUNS[recipe]
    root = SHARED_DATA / folder
    if not root.is_dir():
        pytest.skip(f"no real data at {root}")
    words = ["run", recipe, "scale=cpu", f"data.root={root}", f"backbone={REAL_BACKBONE}"]
    done = CliRunner().invoke(app, [*words, *SHRUNK, *settings, "--out", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.exception
    summary = json.loads(done.output.splitlines()[-1])
    assert math.isfinite(summary["mean_accuracy"])
    assert summary["bad_images"] == 0
    lines = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert len(lines) == 1 + clients
    model = json.loads((tmp_path / "run" / "model.json").read_text())
    assert model["image_size"] == 128
    assert len(model["classes"]) in (30, 50, 7)


@needs_real_backbone
@pytest.mark.parametrize("recipe", RUNS)
def test_the_whole_run_is_planned_from_the_files(recipe: str) -> None:
    root = SHARED_DATA / RUNS[recipe][0]
    if not root.is_dir():
        pytest.skip(f"no real data at {root}")
    words = ["run", recipe, "scale=cpu", f"data.root={root}", f"backbone={REAL_BACKBONE}"]
    done = CliRunner().invoke(app, [*words, "--dry-run", "--json"])
    assert done.exit_code == 0, done.exception
    planned = json.loads(done.output)
    assert not planned["population"]["described"]
    assert planned["architecture"]["image_size"] == 128
    assert planned["architecture"]["width"] == 192
