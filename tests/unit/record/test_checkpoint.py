"""The newest checkpoints are kept, no more and no fewer, and come back whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedcue.record.checkpoint import Checkpoint, Checkpoints
from fedcue.types import ClientMemory, ServerState


def checkpoint(number: int) -> Checkpoint:
    return Checkpoint(
        ServerState(number, {"head": torch.full((2, 3), float(number))}),
        {4: ClientMemory({"own": torch.tensor([number])})},
        10 * number,
        "digest",
        {"warm_up_upload_floats": 1, "warm_up_upload_bytes": 4, "seconds": 0.5, "releases": 3},
        {"classes": {"4": [1]}, "received": {"4": number}, "changed": 2},
    )


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_exactly_so_many_newest_are_kept(tmp_path: Path, keep: int) -> None:
    kept = Checkpoints(tmp_path / "checkpoints", keep)
    for number in range(6):
        kept.write(checkpoint(number))
        assert len(list((tmp_path / "checkpoints").iterdir())) == min(number + 1, keep)
    assert kept.newest().state.round == 5


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "checkpoints", 2)
    kept.write(checkpoint(3))
    found, expected = kept.newest(), checkpoint(3)
    assert torch.equal(found.state.tensors["head"], expected.state.tensors["head"])
    assert torch.equal(found.memories[4].tensors["own"], expected.memories[4].tensors["own"])
    assert dict(found.transport) == dict(expected.transport)
    assert (found.metrics_bytes, found.metrics_digest) == (30, "digest")
    assert found.totals["releases"] == 3


def test_a_checkpoint_with_a_changed_number_is_passed_over(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "checkpoints", 2)
    kept.write(checkpoint(2))
    kept.write(checkpoint(3))
    newest = tmp_path / "checkpoints" / "round-000003.ckpt"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    assert kept.newest().state.round == 2


@pytest.mark.parametrize("kind", ["hole", "header", "tensors", "no table", "no offsets"])
def test_a_file_that_is_not_as_long_as_it_says_is_not_read(tmp_path: Path, kind: str) -> None:
    kept = Checkpoints(tmp_path / "checkpoints", 2)
    kept.write(checkpoint(2))
    heads = {"no table": b"[]", "no offsets": b'{"head": 3}'}
    with open(tmp_path / "checkpoints" / "round-000003.ckpt", "wb") as file:
        file.write(bytes(32))
        if kind == "header":
            file.write((2**62).to_bytes(8, "little"))
        elif kind != "hole":
            head = heads.get(kind, b'{"head": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}')
            file.write((2).to_bytes(8, "little") + b"{}" + len(head).to_bytes(8, "little") + head)
        file.truncate(2**40)  # more than there is memory
    assert kept.newest().state.round == 2
