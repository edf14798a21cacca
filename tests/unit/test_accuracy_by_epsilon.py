"""The script behind the table of accuracy by epsilon does what a run does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import ROOT, SMALL

from fedcue.config.layers import load
from fedcue.rounds.loop import run


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("by_epsilon", ROOT / "scripts" / "accuracy_by_epsilon.py")
    assert spec
    assert spec.loader
    module = sys.modules["by_epsilon"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("where", ["central", "local"])
def test_a_cell_of_the_table_is_the_accuracy_of_a_real_run(tmp_path: Path, where: str) -> None:
    pytest.importorskip("dp_accounting")
    small = [*SMALL, "data.first_classes=3", "partition.classes_per_client=2", "partition.clients=3"]
    private = ["privacy=dp", "privacy.max_epsilon=30", f"privacy.where={where}"]
    result = run(load("default", [*small, "method=fed3r", "precision=float32", *private]), tmp_path / "run")
    task = script().Task.of("default", tmp_path / "features.npy", small)
    replies = task.run("fed3r", "privacy=dp").replies()
    found = task.run("fed3r", *private).accuracies(replies, 0, local=where == "local")
    assert found["none"] == pytest.approx(result.summary["mean_accuracy"])


def test_the_table_is_in_percent_and_what_it_has_is_not_measured_again(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    pytest.importorskip("dp_accounting")
    made = script()
    for name, few in {"METHODS": {"ncm": []}, "UNITS": ("image",), "EPSILONS": (30.0,)}.items():
        monkeypatch.setattr(made, name, few)
    monkeypatch.setattr(made, "TABLE", tmp_path / "epsilon.csv")
    small = [*SMALL, "data.first_classes=3", "partition.classes_per_client=2", "partition.clients=3"]
    made.measure("default", str(tmp_path / "features.npy"), *small)
    cells = made.kept()
    assert [(cell.where, cell.epsilon, cell.seed) for cell in cells if cell.prior == "none"] == [
        ("", "none", 0), *[(where, "30", seed) for where in ("central", "local") for seed in range(3)]
    ]  # fmt: skip
    assert max(cell.accuracy for cell in cells) > 50
    made.TABLE.write_text("".join(made.TABLE.read_text().splitlines(keepends=True)[:-2]))
    capsys.readouterr()
    made.measure("default", str(tmp_path / "features.npy"), *small)
    assert made.kept() == cells
    assert capsys.readouterr().out.count("digits ncm") == 2
