"""A mistake in a method from outside the package: its author sees where, and loses no finished round."""

from __future__ import annotations

import importlib
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import SMALL, without_times

import fedcue
from fedcue.config.layers import load
from fedcue.record.checkpoint import Checkpoints

FAULTY = '''
from typing import ClassVar

import fedcue.methods as fm


class Faulty(fm.Method):
    """FedVPT with a slip of the pen that shows in the second round."""

    name: ClassVar[str] = "faulty"

    def tensors(self, sizes):
        return [*super().tensors(sizes), fm.prompt("shared_prompts", (1, sizes.width), sizes)]

    def update(self, client, sent):
        if client.round == 1:
            sent = {"head": sent["head"], "shared_prompts": sent["shared_promts"]}
        return super().update(client, sent)

    def prompter(self, tensors, batch):
        return fm.shallow(tensors["shared_prompts"])
'''
LINE = 1 + FAULTY[: FAULTY.index('sent["shared_promts"]')].count("\n")
MENDED = FAULTY.replace("shared_promts", "shared_prompts")
SETTINGS = ["method=faulty:Faulty", *SMALL, "rounds=3", "snapshots=[]", "training.lr=0.1"]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return how the author saves the file, in a folder from which it can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(text: str) -> None:
        (tmp_path / "faulty.py").write_text(text)
        sys.modules.pop("faulty", None)
        importlib.invalidate_caches()

    return written


def says_what_happened(told: str, folder: Path) -> None:
    """Check what an author needs: the own file, line and key; client, round and step."""
    assert f'{folder / "faulty.py"}", line {LINE}, in update' in told
    assert "KeyError: 'shared_promts'" in told
    drawn = load("default", SETTINGS)
    clients = [f"training of client {client} in round 2" for client in range(drawn.partition.clients)]
    assert sum(text in told for text in clients) == 1
    assert "This is a bug, not a failure of the client" in told


def same_results(found: Path, expected: Path) -> None:
    """Check that two runs left the same bits."""
    tensors, others = (load_file(folder / "model.safetensors") for folder in (found, expected))
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert (found / "clients.csv").read_text() == (expected / "clients.csv").read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_run_ends_with_the_authors_line_and_goes_on_when_it_is_mended(workers, write, tmp_path) -> None:
    settings, folder = [*SETTINGS, f"workers={workers}"], tmp_path / "run"
    write(FAULTY)
    with pytest.raises(KeyError) as caught:
        fedcue.run(load("default", settings), folder)
    says_what_happened("".join(traceback.format_exception(caught.value)), tmp_path)
    newest = Checkpoints(folder / "checkpoints", keep=2).newest()
    assert newest.state.round == 1
    assert not (folder / "summary.json").exists()

    write(MENDED)
    mended = fedcue.run(load("default", settings), folder, resume=True)
    whole = fedcue.run(load("default", settings), tmp_path / "whole")
    same_results(mended.folder, whole.folder)
    assert without_times(mended.rounds) == without_times(whole.rounds)
    assert [record["round"] for record in mended.rounds] == [1, 2, 3]


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedcue", *words], capture_output=True, text=True, cwd=folder, timeout=280
    )


def test_the_command_line_shows_the_same_and_its_code_is_no_users_mistake(write, tmp_path) -> None:
    write(FAULTY)
    failed = command("run", *SETTINGS, "workers=2", "--out", "run", folder=tmp_path)
    assert failed.returncode not in (0, 2)
    says_what_happened(failed.stderr, tmp_path)
    assert Checkpoints(tmp_path / "run" / "checkpoints", keep=2).newest().state.round == 1

    write(MENDED)
    for words in (
        ("run", *SETTINGS, "--resume", "--out", "run"),
        ("run", *SETTINGS, "workers=1", "--out", "whole"),
    ):
        done = command(*words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    same_results(tmp_path / "run", tmp_path / "whole")


def test_a_bug_at_the_test_of_a_client_is_told_as_such(write, tmp_path) -> None:
    write(MENDED + '\n    def predict(self, tensors, batch):\n        return tensors["haed"]\n')
    with pytest.raises(KeyError) as caught:
        fedcue.run(load("default", [*SETTINGS, "rounds=1"]), tmp_path / "run")
    told = "".join(traceback.format_exception(caught.value))
    assert "test of client 0" in told
    assert "KeyError: 'haed'" in told
