"""Runs survive: killed at any moment and resumed, they end with the same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest
from support import SMALL
from test_run import without_times

import fedcue
from fedcue.errors import FedcueError, RunFolderError
from fedcue.record.checkpoint import Checkpoints
from fedcue.record.folder import read_metrics
from fedcue.registry import METHODS

ROUNDS = 4


def config(method: str, *overrides: str) -> fedcue.RunConfig:
    return fedcue.configure(
        "default", [*SMALL, f"rounds={ROUNDS}", f"method={method}", "snapshots=[]", *overrides]
    )


def work(method: str, folder: Path, die_at_file_operation: int | None) -> None:
    """In a child process: run or resume; perhaps die at the n-th rename or sync."""
    if die_at_file_operation is not None:
        left = [die_at_file_operation]
        for name in ("replace", "fsync"):
            original = getattr(os, name)

            def wrapped(*arguments: object, original: Callable[..., object] = original) -> object:
                left[0] -= 1
                if left[0] <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments)

            setattr(os, name, wrapped)
    resume = (folder / "config.toml").exists() and any((folder / "checkpoints").glob("round-*.ckpt"))
    fedcue.run(config(method), folder, resume=resume, overwrite=not resume)


def survive(method: str, folder: Path, kills: int, seed: int) -> int:
    """Run to the end with ``kills`` kills on the way; return how many hit."""
    generator = random.Random(seed)
    context = get_context("fork")
    hits = 0
    while not (folder / "summary.json").exists():
        by_time = generator.random() < 0.5
        operation = None if by_time or hits >= kills else generator.randint(1, 8)
        process = context.Process(target=work, args=(method, folder, operation))
        process.start()
        process.join(generator.uniform(0.05, 2.5) if by_time and hits < kills else 120)
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        if process.exitcode == -signal.SIGKILL:
            hits += 1
        else:
            assert process.exitcode == 0
    return hits


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "analysis.safetensors", "clients.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert without_times(read_metrics(one)) == without_times(read_metrics(other))


KILLS = {name: 20 if name == "pep" else 3 for name in METHODS.builtin}


@pytest.mark.parametrize("method", KILLS)
def test_a_killed_run_resumes_to_the_same_bits(method: str, tmp_path: Path) -> None:
    whole = fedcue.run(config(method), tmp_path / "whole")
    hits = attempt = 0
    while hits < KILLS[method]:
        folder = tmp_path / f"killed-{attempt}"
        hits += survive(method, folder, KILLS[method] - hits, seed=attempt)
        assert_same_run(whole.folder, folder)
        attempt += 1
        assert attempt < 60


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = fedcue.run(config("pep"), tmp_path / "whole")
    part = fedcue.run(config("pep"), tmp_path / "part")
    (part.folder / "summary.json").unlink()
    newest = sorted((part.folder / "checkpoints").iterdir())[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    fedcue.run(config("pep"), part.folder, resume=True)
    assert f"{newest.name} is damaged" in caplog.text
    assert_same_run(whole.folder, part.folder)


def test_without_a_usable_checkpoint_resuming_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "round-000001.ckpt").write_bytes(b"junk")
    with pytest.raises(RunFolderError, match="no usable checkpoint.*--overwrite"):
        Checkpoints(tmp_path / "checkpoints", 2).newest()


def test_resuming_what_never_started_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run to resume"):
        fedcue.run(config("pep"), tmp_path / "new", resume=True)


def start_command(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    settings = [*SMALL, "rounds=500", "evaluation.every=0", "workers=2", *overrides]
    command = [sys.executable, "-m", "fedcue", "run", *settings, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_rounds(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or len(read_metrics(folder)) < count:
        assert time.monotonic() < deadline, "the run did not get going"
        time.sleep(0.1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_checkpoints_and_says_how_to_go_on(tmp_path: Path, number: int, code: int) -> None:
    process = start_command(tmp_path / "run", "checkpoint.every=100")
    wait_for_rounds(tmp_path / "run", 2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert f"go on with: fedcue resume {tmp_path / 'run'}" in output
    assert "Traceback" not in output
    done = len(read_metrics(tmp_path / "run"))
    assert Checkpoints(tmp_path / "run" / "checkpoints", 2).newest().state.round == done


def children_of(parent: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def test_a_dead_worker_ends_the_run_with_a_clear_message(tmp_path: Path) -> None:
    process = start_command(tmp_path / "run")
    wait_for_rounds(tmp_path / "run", 2)
    os.kill(children_of(process.pid)[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "A worker process died" in output
    assert "Traceback" not in output
    assert Checkpoints(tmp_path / "run" / "checkpoints", 2).newest().state.round >= 2


def test_killing_the_run_leaves_no_orphans(tmp_path: Path) -> None:
    process = start_command(tmp_path / "run")
    wait_for_rounds(tmp_path / "run", 1)
    workers = children_of(process.pid)
    assert workers
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker outlived the run"
        time.sleep(0.2)


def test_a_full_disk_leaves_the_last_checkpoint_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedcue.record.files as files

    calls = [0]
    original = os.fsync

    def full(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] > 12:
            raise OSError(28, "No space left on device")
        original(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(
        FedcueError, match=r"Cannot write .*No space left on device.*checkpoints written before are intact"
    ):
        fedcue.run(config("pep"), tmp_path / "run")
    monkeypatch.undo()
    resumed = fedcue.run(config("pep"), tmp_path / "run", resume=True)
    whole = fedcue.run(config("pep"), tmp_path / "whole")
    assert_same_run(whole.folder, resumed.folder)
