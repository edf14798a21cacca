"""One process per folder, whatever happens to the file that says so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedcue.errors import RunFolderError
from fedcue.record import lock
from fedcue.record.folder import RunFolder
from fedcue.report.run_files import is_written

LEAVE_A_CHILD = (
    "import os, sys, time; from pathlib import Path; from fedcue.record.lock import FolderLock\n"
    "FolderLock(Path(sys.argv[1])).take()\n"
    "child = os.fork()\n"
    "if child == 0: time.sleep(float(sys.argv[2]))\n"
    "if child: print(child, flush=True)\n"
    "os._exit(0)"
)


def leave_a_child(folder: Path, seconds: float) -> int:
    """Let a process take the lock and die; return its child, which inherits the lock."""
    command = [sys.executable, "-c", LEAVE_A_CHILD, str(folder), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        return int(process.stdout.readline())


def test_deleting_the_file_admits_no_second_writer(tmp_path: Path) -> None:
    first, second = lock.FolderLock(tmp_path), lock.FolderLock(tmp_path)
    first.take()
    (tmp_path / ".lock").unlink()
    with pytest.raises(RunFolderError, match="in use by process"):
        second.take()
    first.release()
    second.take()
    second.release()


def test_the_lock_of_a_killed_run_is_free_when_its_workers_have_noticed(tmp_path: Path) -> None:
    leave_a_child(tmp_path, 1)
    folder = RunFolder(tmp_path)
    folder.open(overwrite=True)
    assert (tmp_path / ".lock").read_text() == str(os.getpid())
    folder.close()


def test_a_process_that_a_dead_one_left_behind_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WORKERS_NOTICE", 0.2)
    child = leave_a_child(tmp_path, 600)
    try:
        with pytest.raises(RunFolderError, match=rf"in use by process {child}, left over from process \d+"):
            lock.FolderLock(tmp_path).take()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_link_or_a_pipe_in_place_of_a_file_is_neither_written_nor_waited_for(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("keep")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text("")
    for name in (".lock", "metrics.jsonl", "releases.jsonl", ".config.toml.part"):
        (folder / name).symlink_to(outside)
        with pytest.raises(RunFolderError, match=re.escape(f"{name} is a link or a pipe")):
            RunFolder(folder).open(resume=True)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(RunFolderError, match=re.escape(f"{name} is a link or a pipe")):
            RunFolder(folder).open(resume=True)
        assert not is_written(folder)
        (folder / name).unlink()
    (folder / "log").mkdir()
    for name, target in (("tensorboard", tmp_path / "elsewhere"), ("loop", "../../run/../loop")):
        (folder / "log" / name).symlink_to(target)
        with pytest.raises(RunFolderError, match=re.escape(f"{name} is a link or a pipe")):
            RunFolder(folder).open(resume=True)
        (folder / "log" / name).unlink()
    (folder / "log" / "wandb").mkdir()
    (folder / "log" / "wandb" / "latest").symlink_to("run-1")  # as trackers make them
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / ".round-000001.ckpt.part").symlink_to(tmp_path / "new")
    (folder / "checkpoints" / ".round-000002.ckpt.part").write_text("half")
    opened = RunFolder(folder)
    opened.open(resume=True)
    opened.close()
    assert not list((folder / "checkpoints").iterdir())
    assert outside.read_text() == "keep"
