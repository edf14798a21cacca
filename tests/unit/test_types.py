"""What travels arrives as it was sent."""

from __future__ import annotations

import torch

from fedcue.types import pack, unpack


def test_tensors_arrive_in_the_order_of_their_names() -> None:
    sent = {name: torch.full((2,), float(number)) for number, name in enumerate("hbgacfed")}
    data = pack(sent)
    for _ in range(20):
        received = unpack(data)
        assert list(received) == sorted(sent)
        assert all(torch.equal(received[name], sent[name]) for name in sent)
