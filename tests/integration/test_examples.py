"""The examples run, and the pseudocode computes what the engine computes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from support import ROOT, SMALL

import fedcue


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("rounds", "rate"), [(2, 0.1), (10, 0.01)])
def test_the_pseudocode_equals_the_engine(tmp_path: Path, rounds: int, rate: float) -> None:
    """Ten rounds have a whole period; small steps, because large ones triple a rounding error every round."""
    small = [*SMALL, f"training.prompt_lr={rate}", f"training.head_lr={rate / 10}"]
    settings = [*small, f"rounds={rounds}", "snapshots=[]", "evaluation.every=0"]
    plain = example("00_pseudocode").main(rounds, tuple(settings))
    result = fedcue.run(fedcue.configure("default", settings), tmp_path / "run")
    ours = load_file(result.folder / "model.safetensors")
    for name, tensor in plain.items():
        torch.testing.assert_close(
            tensor, ours[name], atol=1e-4, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_the_propositions_hold_in_their_figure(tmp_path: Path) -> None:
    found = example("02_propositions").main(tmp_path / "propositions.svg", seed=3)
    assert found["1: lowest bound at distance"] == pytest.approx(0, abs=1e-9)
    errors = {name: error for name, error in found.items() if name.startswith("2")}
    assert min(errors, key=errors.__getitem__) == "2: mixture by scores (PEP-FedPT)"
    assert found["3: last 100, decaying rate"] < found["3: last 100, constant rate"] / 4
    assert found["3: last 100, decaying rate"] < found["3: first gradient"] / 10
    assert "squared norm" in (tmp_path / "propositions.svg").read_text()


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 3
    assert not any(cell["outputs"] for cell in cells), "notebooks are kept without outputs"
    program = tmp_path / "notebook.py"
    program.write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_examples_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:2]) for path in (ROOT / "examples").glob("[0-9]*"))
    assert numbers == list(range(len(numbers)))
