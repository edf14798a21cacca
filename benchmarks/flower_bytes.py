"""Count the bytes of a round as Flower serialises them: ``python benchmarks/flower_bytes.py``.

Nothing is trained and nothing is sent: messages are made of tensors of the right names, shapes and types.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

import fedcue
from fedcue.aggregate.mean import sum_updates
from fedcue.clients.roster import Roster
from fedcue.flower.expected import Expected, expected_replies
from fedcue.flower.messages import Order, Outcome, write_orders, write_outcomes
from fedcue.flower.terms import Terms
from fedcue.model.shapes import shape_of
from fedcue.types import Download, Update, count_bytes

NODES, CLIENTS, HELD_OUT, IMAGES = 3, 20, 2, 72
CLASSES = tuple(map(str, range(10)))


def size(content: RecordDict) -> int:
    """Return the bytes of a message with this content."""
    message = Message(content, dst_node_id=1, message_type="train")
    return len(message_to_proto(message).SerializeToString())


def example(expected: Expected) -> dict[str, torch.Tensor]:
    """Return tensors of the expected shapes and types."""
    return {
        spec.name: torch.ones([size or 0 for size in spec.shape], dtype=spec.dtype) for spec in expected.specs
    }


def count(method: str) -> None:
    """Print what the simulator counts in a round, and what training and a test of all clients take."""
    config = fedcue.configure("default", [f"method={method}"])
    own, shape = config.method, shape_of("embedded")
    heldout, sizes = np.arange(CLIENTS) < HELD_OUT, np.full(CLIENTS, IMAGES)
    names = [""] * CLIENTS
    about: dict[str, Any] = {"heldout": heldout, "train_sizes": sizes, "test_sizes": sizes}
    roster = Roster(config, "digits", CLASSES, shape, names=names, domains=names, **about)
    first, reply, _ = expected_replies(roster)
    asked = roster.training_clients.tolist() if first.specs else []
    replies = [Update(client, IMAGES, example(first)) for client in asked]
    state = own.start(roster.sizes, 0, sum_updates(replies, roster.table))
    terms = Terms.of("run", config, CLASSES, shape, CLIENTS)
    common = None if roster.table.kept else own.download(state, 0, roster.sizes, 0)

    def order(client: int) -> Order:
        sent = own.download(state, client, roster.sizes, 0) if common is None else common
        return Order(client, Download(client, 0, sent))

    def total(clients: list[int], outcome: Outcome) -> NDArray[np.int64]:
        groups = [[c for c in clients if c % NODES == node] for node in range(NODES)]
        down = sum(size(write_orders(terms, [order(c) for c in group])) for group in groups if group)
        up = sum(
            size(write_outcomes([replace(outcome, client=c) for c in group])) for group in groups if group
        )
        return np.array([down, up])

    update, score = Outcome(0, example(reply), IMAGES, 0.1), Outcome(0, score=(1, 2))
    rounds = [roster.schedule.drawn(number) for number in range(config.rounds)]
    trained = np.mean([total(clients, update) for clients in rounds], axis=0).round().astype(int)
    served = roster.tested()
    down = own.download(state, 0, roster.sizes, 0)
    counted = [count_bytes(tensors) for tensors in (down, example(reply))]
    values = [*(config.clients_per_round * np.array(counted)), *trained, *total(served, score)]
    print("|", " | ".join([method, *(f"{value:,}" for value in values)]), "|")


if __name__ == "__main__":
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    for name in ("pep", "fedvpt", "ppt", "pfedpg"):
        count(name)
