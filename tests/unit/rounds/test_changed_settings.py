"""A run that is resumed with other settings says so."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from support import SMALL

import fedcue
from fedcue.config.layers import load

HEAD = [*SMALL, "method=head", "workers=1"]


def test_a_run_resumed_with_other_training_keeps_both_settings_and_says_from_when(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fedcue.run(load("default", [*HEAD, "rounds=1", "training.lr=0.1"]), folder)
    plain = fedcue.run(load("default", [*HEAD, "rounds=2", "training.lr=0.1"]), folder, resume=True)
    assert "changed_settings" not in plain.summary
    assert not list(folder.glob("config-*"))
    fedcue.run(load("default", [*HEAD, "rounds=3", "training.lr=0.2"]), folder, resume=True)
    told = json.loads((folder / "summary.json").read_text())["changed_settings"]
    assert told == [{"from_round": 3, "settings": {"training.lr": {"before": 0.1, "now": 0.2}}}]
    rates = [
        tomllib.loads((folder / name).read_text())["training"]["lr"]
        for name in ("config-round-000002.toml", "config.toml")
    ]
    assert rates == [0.1, 0.2]
