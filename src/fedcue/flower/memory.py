"""What a client remembers between rounds, in files on its own disk.

The server names the round to load, so that both agree after either of them was stopped: if a round
is repeated, so is the memory it started from. The memory that was loaded and the one that came of it
are kept, nothing older. Newer ones are left alone: a visit that took too long may end after the next.
"""

from __future__ import annotations

import logging
from pathlib import Path

from safetensors import SafetensorError

from fedcue.errors import ClientError
from fedcue.record.files import write_tensors
from fedcue.types import ClientMemory, unpack

log = logging.getLogger(__name__)


class MemoryStore:
    """The memories of the clients of one machine in one run."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder / run

    def load(self, client: int, round_: int | None) -> ClientMemory:
        """Return what the client remembered after its visit in a round."""
        if round_ is None:
            return ClientMemory()
        path = self._path(client, round_)
        try:
            return ClientMemory(unpack(path.read_bytes()))
        except (OSError, SafetensorError) as error:
            log.warning("a memory cannot be read: %s (%s)", path, error)
            raise ClientError(
                f"its memory of round {round_ + 1} is lost; the node's log says where"
            ) from error

    def save(self, client: int, loaded: int | None, round_: int, memory: ClientMemory) -> None:
        """Keep what the client remembers after a round beside what it started from."""
        path = self._path(client, round_)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_tensors(path, memory.tensors)
        kept = None if loaded is None else self._path(client, loaded)
        for other in path.parent.glob("round-*.safetensors"):
            if other.name < path.name and other != kept:
                other.unlink(missing_ok=True)

    def _path(self, client: int, round_: int) -> Path:
        return self.folder / f"client-{client}" / f"round-{round_:06d}.safetensors"
