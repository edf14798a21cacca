"""A run that is resumed with other settings says so."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from support import SMALL

import fedcue
from fedcue.config.layers import load, load_folder
from fedcue.errors import ConfigError, RunFolderError
from fedcue.rounds import resume

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


def begun(folder: Path) -> Path:
    """Return the folder of a run of which one round is done."""
    return fedcue.run(load("default", [*HEAD, "rounds=1", "training.lr=0.1"]), folder).folder


def edited(folder: Path, before: str, after: str) -> None:
    """Change a run's settings by hand."""
    path = folder / "config.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_settings_that_were_changed_by_hand_are_told_like_others(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    edited(folder, "\nlr = 0.1\n", "\nlr = 0.3\n")
    edited(folder, "rounds = 1", "rounds = 2")
    told = fedcue.run(load_folder(folder), folder, resume=True).summary["changed_settings"]
    assert told == [{"from_round": 2, "settings": {"training.lr": {"before": 0.1, "now": 0.3}}}]
    kept = tomllib.loads((folder / "config-round-000001.toml").read_text())
    assert kept["training"]["lr"] == 0.1
    assert kept["environment"] == tomllib.loads((folder / "config.toml").read_text())["environment"]


def test_a_seed_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    edited(folder, "seed = 0", "seed = 1")
    before = (folder / "config.toml").read_text()
    with pytest.raises(RunFolderError, match=r"not what it was in round 1: there seed=0, asked for seed=1"):
        fedcue.run(load_folder(folder), folder, resume=True)
    assert (folder / "config.toml").read_text() == before


def test_other_versions_and_what_moves_the_last_bits_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(tmp_path / "run")
    newer = resume.environment() | {"torch": "9.9"}
    monkeypatch.setattr(resume, "environment", lambda: newer)
    config = load("default", [*HEAD, "rounds=2", "training.lr=0.1", "engine.together=2", "checkpoint.keep=3"])
    (told,) = fedcue.run(config, folder, resume=True).summary["changed_settings"]
    assert set(told["settings"]) == {"environment.torch", "engine.together"}
    assert told["settings"]["environment.torch"]["now"] == "9.9"


def test_a_run_does_not_lose_rounds_that_it_has(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    before = (folder / "config.toml").read_text()
    with pytest.raises(
        RunFolderError, match=r"has 1 round already, asked for rounds=0. Give rounds=1 or more"
    ):
        fedcue.run(load("default", [*HEAD, "rounds=0", "training.lr=0.1"]), folder, resume=True)
    assert (folder / "config.toml").read_text() == before


def test_earlier_settings_that_cannot_be_read_are_said_before_any_round(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    (folder / "config-round-000000.toml").write_text("method = 3")
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError):
        fedcue.run(load("default", [*HEAD, "rounds=2", "training.lr=0.1"]), folder, resume=True)
    assert (folder / "metrics.jsonl").read_bytes() == before
