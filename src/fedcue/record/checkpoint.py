"""Checkpoints: everything needed to go on after the last finished round."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from torch import Tensor

from fedcue.errors import RunFolderError
from fedcue.foreign import STRANGE, ordinary
from fedcue.record.files import explained, write_bytes
from fedcue.types import ClientMemory, ServerState, pack, unpack

log = logging.getLogger(__name__)
_STATE, _MEMORY = "state/", "memory/"
_MAX_HEADER = 2**26
"""Bytes of what stands before the numbers at most."""

_Number = Annotated[int, Field(ge=0, le=2**31)]
_Id = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


@dataclass(frozen=True)
class Checkpoint:
    """The server's state, the clients' memories and the length of ``metrics.jsonl`` at that time.

    Every random stream is named by seed, client and round, so that no generator state is needed.
    """

    state: ServerState
    memories: Mapping[int, ClientMemory]
    metrics_bytes: int
    metrics_digest: str
    totals: Mapping[str, Any]
    transport: Mapping[str, Any]
    settings: Mapping[str, Any] | None = None
    """The settings under which its last round was done, as ``config.toml`` had them, if it says so."""


class _Wire(BaseModel):
    """What the server must remember of earlier messages, as JSON holds it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    classes: dict[_Id, list[_Number]]
    received: dict[_Id, _Number]
    changed: _Number


class _Totals(BaseModel):
    """What a run adds up from its start on, as JSON holds it."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    warm_up_upload_floats: Annotated[int, Field(ge=0)]
    warm_up_upload_bytes: Annotated[int, Field(ge=0)]
    seconds: float
    warm_up_failures: list[dict[Literal["client", "reason"], int | str]] = []
    releases: Annotated[float, Field(ge=0)] = 0


class _Header(BaseModel):
    """What stands before the tensors in a checkpoint."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    round: _Number
    metrics_bytes: Annotated[int, Field(ge=0, lt=2**62)]
    metrics_digest: str
    totals: _Totals
    transport: _Wire
    clients: list[_Number]
    settings: dict[str, Any] | None = None


@dataclass(frozen=True)
class Checkpoints:
    """The newest checkpoints of a run, each in one file that carries its own checksum."""

    folder: Path
    keep: int

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then drop the oldest beyond ``keep``."""
        body = _encode(checkpoint)
        path = self.folder / f"round-{checkpoint.state.round:06d}.ckpt"
        with explained(path):
            self.folder.mkdir(exist_ok=True)
            write_bytes(path, hashlib.sha256(body).digest() + body)
            for old in self._paths()[: -self.keep]:
                old.unlink(missing_ok=True)

    def any(self) -> bool:
        """Tell whether there is a checkpoint, whole or not."""
        return bool(self._paths())

    def newest(self) -> Checkpoint:
        """Read the newest checkpoint that is whole; report the damaged ones passed over."""
        for path in reversed(self._paths()):
            try:
                return _decode(_measured(path).read_bytes())
            except (*STRANGE, SafetensorError) as error:
                reason = " ".join(str(error).split())[:200]
                log.warning("Checkpoint %s is damaged (%s); using the one before it.", path.name, reason)
        raise RunFolderError(
            f"{self.folder} holds no usable checkpoint. Start again with --overwrite or another --out."
        )

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.ckpt"))


def _encode(checkpoint: Checkpoint) -> bytes:
    tensors: dict[str, Tensor] = {_STATE + name: t for name, t in checkpoint.state.tensors.items()}
    for client, memory in checkpoint.memories.items():
        tensors |= {f"{_MEMORY}{client}/{name}": tensor for name, tensor in memory.tensors.items()}
    header = json.dumps(
        {
            "round": checkpoint.state.round,
            "metrics_bytes": checkpoint.metrics_bytes,
            "metrics_digest": checkpoint.metrics_digest,
            "totals": dict(checkpoint.totals),
            "transport": dict(checkpoint.transport),
            "clients": list(checkpoint.memories),
            "settings": checkpoint.settings,
        }
    ).encode()
    return len(header).to_bytes(8, "little") + header + pack(tensors)


def _measured(path: Path) -> Path:
    """Refuse a file that is not as long as its own headers say, before it is read."""
    with open(ordinary(path), "rb") as file:
        file.seek(hashlib.sha256().digest_size)
        _header_of(file)
        tensors = json.loads(_header_of(file))
        ends = [about["data_offsets"][1] for name, about in tensors.items() if name != "__metadata__"]
        if file.tell() + max(ends, default=0) != path.stat().st_size:
            raise ValueError("it is not as long as it says")
    return path


def _header_of(file: BinaryIO) -> bytes:
    """Return the text that begins here, behind its length."""
    size = int.from_bytes(file.read(8), "little")
    if size > _MAX_HEADER:
        raise ValueError(f"its header is larger than {_MAX_HEADER // 2**20} MiB")
    return file.read(size)


def _decode(data: bytes) -> Checkpoint:
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("its checksum does not match")
    size = int.from_bytes(body[:8], "little")
    header = _Header.model_validate(json.loads(body[8 : 8 + size]))
    tensors = unpack(body[8 + size :])
    state = {name.removeprefix(_STATE): t for name, t in tensors.items() if name.startswith(_STATE)}
    memories: dict[int, dict[str, Tensor]] = {client: {} for client in header.clients}
    for name, tensor in tensors.items():
        if name.startswith(_MEMORY):
            client, _, own = name.removeprefix(_MEMORY).partition("/")
            memories[int(client)][own] = tensor
    return Checkpoint(
        ServerState(header.round, state),
        {client: ClientMemory(own) for client, own in memories.items()},
        header.metrics_bytes,
        header.metrics_digest,
        header.totals.model_dump(exclude_defaults=True),
        header.transport.model_dump(),
        header.settings,
    )
