"""One process writes a run folder: the folder itself is locked, and a file in it says by whom."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedcue.errors import RunFolderError

NAME = ".lock"

WORKERS_NOTICE = 5.0
"""Seconds that worker processes may take to notice that their run was killed."""


@dataclass
class FolderLock:
    """The lock of a folder: held until it is released, or until the process and its workers are dead."""

    folder: Path
    _held: list[int] = field(default_factory=list)

    def take(self) -> None:
        """Take the lock; that of a dead process is free as soon as its worker processes are gone.

        The folder is locked as well as the file, so that deleting the file admits nobody else.
        """
        try:
            self._held.append(os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY))
            self._held.append(os.open(self.folder / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644))
            file = self._held[-1]
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise RunFolderError(f"{self.folder / NAME} is not a file. Delete it, or give another --out.")
            self._wait()
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the folder."""
        while self._held:
            os.close(self._held.pop())

    def _wait(self) -> None:
        deadline = time.monotonic() + WORKERS_NOTICE
        while not all(map(_locked, self._held)):
            owner = os.pread(self._held[-1], 100, 0).decode(errors="replace").strip()
            dead = owner.isdecimal() and not Path("/proc", owner).exists()
            if time.monotonic() > deadline or not dead:
                raise RunFolderError(self._in_use(owner, dead))
            time.sleep(0.1)

    def _in_use(self, owner: str, dead: bool) -> str:
        others = sorted(set(_holders({_place(os.fstat(file)) for file in self._held})))
        if dead and others:
            left, pids = f", left over from process {owner}", " ".join(map(str, others))
            return f"{self.folder} is in use by process {pids}{left}, which is dead. End it: kill -9 {pids}"
        who = owner if owner.isdecimal() else next(map(str, others), "unknown")
        return f"{self.folder} is in use by process {who}. Wait for it or give another --out."


def _locked(descriptor: int) -> bool:
    """Lock a file or folder unless another process has; some file systems cannot lock a folder."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    return True


def _place(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _holders(places: set[tuple[int, int]]) -> Iterator[int]:
    """Yield the other processes that have one of these files open, as far as this user may see them."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or is somebody else's
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    if int(process.name) != os.getpid() and _place(link.stat()) in places:
                        yield int(process.name)
