"""Runs survive: killed at any moment and resumed, they end with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from soak import assert_same_run, config, soak
from support import SMALL

import fedcue
from fedcue.errors import FedcueError, Interrupted, RunFolderError
from fedcue.record.checkpoint import Checkpoints
from fedcue.record.folder import RunFolder, read_metrics
from fedcue.registry import METHODS
from fedcue.rounds.executor import Executor

ONCE = ("fedrod", "lora", "local", "central")
"""Methods that have nothing of their own to resume: memories are P-PT's, tensors FedVPT's."""
KILLS = {name: 20 if name == "pep" else 1 if name in ONCE else 3 for name in METHODS.builtin}


@pytest.mark.parametrize("method", KILLS)
def test_a_killed_run_resumes_to_the_same_bits(method: str, tmp_path: Path) -> None:
    assert soak(method, KILLS[method], tmp_path).total() >= KILLS[method]


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


def test_without_a_usable_checkpoint_resuming_says_what_to_do_and_changes_nothing(tmp_path: Path) -> None:
    folder = fedcue.run(config("fedvpt"), tmp_path / "run").folder
    for file in (folder / "checkpoints").iterdir():
        file.write_bytes(b"junk")
    before = (folder / "config.toml").read_bytes()
    with pytest.raises(RunFolderError, match=r"no usable checkpoint.*--overwrite"):
        fedcue.run(config("fedvpt", "training.epochs=2"), folder, resume=True)
    assert (folder / "config.toml").read_bytes() == before


def test_what_was_trained_on_is_not_validated_on_when_a_run_goes_on(tmp_path: Path) -> None:
    folder = fedcue.run(config("head"), tmp_path / "run").folder
    for change in ("evaluation.on=validation", "evaluation.validation_share=0.5"):
        with pytest.raises(RunFolderError, match=change.partition("=")[0]):
            fedcue.run(config("head", change), folder, resume=True)
    fedcue.run(config("head", "evaluation.every=0"), folder, resume=True)


def test_a_run_that_was_killed_before_it_began_can_be_started_again(tmp_path: Path) -> None:
    killed = RunFolder(tmp_path / "run")
    killed.open()
    with pytest.raises(RunFolderError, match="in use"):
        RunFolder(tmp_path / "run").open()
    killed.close()
    assert [file.name for file in (tmp_path / "run").iterdir()] == [".lock"]
    RunFolder(tmp_path / "run").open()


def test_resuming_what_never_started_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run to resume"):
        fedcue.run(config("pep"), tmp_path / "new", resume=True)


def start_command(folder: Path, *overrides: str, under: Sequence[str] = ()) -> subprocess.Popen[str]:
    settings = [*SMALL, "rounds=500", "evaluation.every=0", "workers=2", *overrides]
    command = [*under, sys.executable, "-m", "fedcue", "run", *settings, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_rounds(folder: Path, count: int, process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or len(read_metrics(folder)) < count:
        assert time.monotonic() < deadline, "the run did not get going"
        assert process is None or process.poll() is None, process.communicate()[0]
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
        FedcueError,
        match=r"Cannot write .*No space left on device.*Checkpoints written before are intact; fedcue resume",
    ):
        fedcue.run(config("pep"), tmp_path / "run")
    monkeypatch.undo()
    resumed = fedcue.run(config("pep"), tmp_path / "run", resume=True)
    whole = fedcue.run(config("pep"), tmp_path / "whole")
    assert_same_run(whole.folder, resumed.folder)


def assert_ended_well(process: subprocess.Popen[str], folder: Path, reason: str) -> None:
    """The message names the file, the reason and the way on; the newest checkpoint can be read."""
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert "Cannot write" in output
    assert reason in output
    assert "fedcue resume" in output
    assert "Traceback" not in output
    newest = sorted((folder / "checkpoints").glob("round-*.ckpt"))[-1]
    assert Checkpoints(folder / "checkpoints", 2).newest().state.round == int(newest.stem[-6:]) >= 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB, where one may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "fedcue-test", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_fills_up_ends_the_run_with_its_last_checkpoint(small_disk: Path) -> None:
    folder = small_disk / "run"
    process = start_command(folder)
    wait_for_rounds(folder, 3, process)  # the checkpoint of round 2 is there
    with suppress(OSError), open(small_disk / "filler", "wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    assert_ended_well(process, folder, "No space left on device")


ORDINARY = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
"""Starts a command to which, even as root, a file without write permission is read-only."""


def test_a_folder_that_becomes_read_only_ends_the_run_with_its_last_checkpoint(tmp_path: Path) -> None:
    under = ORDINARY if os.geteuid() == 0 else []
    if under and subprocess.run(["which", "setpriv"], capture_output=True, check=False).returncode:
        pytest.skip("root writes everywhere, and there is no setpriv to take that away")
    folder = tmp_path / "run"
    process = start_command(folder, under=under)
    wait_for_rounds(folder, 3, process)  # the checkpoint of round 2 is there
    for path in (folder / "checkpoints", folder):
        path.chmod(0o500)
    (folder / "metrics.jsonl").chmod(0o400)
    assert_ended_well(process, folder, "Permission denied")
    for path in (folder, folder / "checkpoints"):
        path.chmod(0o700)


def test_a_stop_during_evaluation_loses_nothing_and_keeps_nothing_of_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-PT's clients have trained by then: what they remember of the unfinished round must not stay."""
    whole = fedcue.run(config("ppt"), tmp_path / "whole")
    original, calls = Executor.evaluate, []

    def stopped(self: Executor, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise Interrupted(15)
        return original(self, *arguments, **named)

    monkeypatch.setattr(Executor, "evaluate", stopped)
    with pytest.raises(Interrupted):
        fedcue.run(config("ppt"), tmp_path / "part")
    resumed = fedcue.run(config("ppt"), tmp_path / "part", resume=True)
    assert_same_run(whole.folder, resumed.folder)


def test_a_changed_history_is_not_gone_on_with(tmp_path: Path) -> None:
    done = fedcue.run(config("head"), tmp_path / "run")
    path = done.folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"round": 1', '"round": 7'))
    with pytest.raises(RunFolderError, match="not what its checkpoint remembers.*--overwrite"):
        fedcue.run(config("head"), done.folder, resume=True)


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    done = fedcue.run(config("head"), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"there method.name=head, asked for method.name=fedvpt.*--out"):
        fedcue.run(config("fedvpt"), done.folder, resume=True)
    with pytest.raises(RunFolderError, match="there seed=0, asked for seed=1"):
        fedcue.run(config("head", "seed=1"), done.folder, resume=True)
    longer = fedcue.run(config("head", "rounds=5"), done.folder, resume=True)
    assert longer.summary["rounds"] == 5


def test_a_run_stopped_in_its_warm_start_is_resumed_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fedcue.run(config("pep"), tmp_path / "whole")

    def stopped(*_: Any) -> None:
        raise Interrupted("SIGTERM")

    with monkeypatch.context() as patch:
        patch.setattr("fedcue.methods.pep.PEP.start", stopped)
        with pytest.raises(Interrupted):
            fedcue.run(config("pep"), tmp_path / "part")
    fedcue.run(config("pep"), tmp_path / "part", resume=True)
    assert_same_run(whole.folder, tmp_path / "part")


def test_ctrl_c_ends_a_run_whose_worker_stands_still(tmp_path: Path) -> None:
    process = start_command(tmp_path / "run")
    wait_for_rounds(tmp_path / "run", 1)
    os.kill(children_of(process.pid)[0], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "go on with: fedcue resume" in output
    assert Checkpoints(tmp_path / "run" / "checkpoints", 2).newest().state.round >= 1


def test_killing_the_run_ends_a_worker_that_stands_still_and_frees_the_lock(tmp_path: Path) -> None:
    process = start_command(tmp_path / "run")
    wait_for_rounds(tmp_path / "run", 1)
    os.kill(children_of(process.pid)[0], signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=60)
    folder = RunFolder(tmp_path / "run")
    folder.open(resume=True)
    assert (tmp_path / "run" / ".lock").read_text() == str(os.getpid())
    folder.close()
