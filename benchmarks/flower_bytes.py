"""Count the bytes of a round as Flower serialises them: ``python benchmarks/flower_bytes.py``.

Nothing is trained and nothing is sent: messages are made of tensors of the right names, shapes and types.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.supercore.task_identity import TaskIdentity

import fedcue
from fedcue.clients.roster import Roster
from fedcue.clients.sampling import sample_clients
from fedcue.flower.messages import Order, Outcome, write_orders, write_outcomes
from fedcue.flower.replies import expected_replies
from fedcue.flower.terms import Terms
from fedcue.model.shapes import shape_of
from fedcue.types import Update, count_bytes

NODES, CLIENTS, HELD_OUT, IMAGES = 3, 20, 2, 72
CLASSES = tuple(map(str, range(10)))


def size(content: RecordDict) -> int:
    """Return the bytes of a message with this content."""
    message = Message(content, dst_node_id=1, message_type="train")
    return len(message_to_proto(message).SerializeToString())


def count(method: str) -> None:
    """Print what the simulator counts in a round, and what training and a test of all clients take."""
    config = fedcue.configure("default", [f"method={method}"])
    own, shape = config.method, shape_of("embedded")
    heldout, sizes = np.arange(CLIENTS) < HELD_OUT, np.full(CLIENTS, IMAGES)
    names = [""] * CLIENTS
    people = {"names": names, "domains": names, "heldout": heldout, "train_sizes": sizes, "test_sizes": sizes}
    roster = Roster(config, "digits", CLASSES, shape, **people)
    first, reply = expected_replies(roster)
    asked = roster.training_clients.tolist() if first.tensors else []
    state = own.start(roster.setting, 0, [Update(client, IMAGES, first.tensors) for client in asked])
    terms = Terms.of("run", config, CLASSES, shape, CLIENTS)
    common = None if own.keeps_memory else own.download(state, 0, 0)

    def order(client: int) -> Order:
        sent = own.download(state, client, 0) if common is None else replace(common, client=client)
        return Order(client, sent)

    def total(clients: list[int], outcome: Outcome) -> np.ndarray:
        groups = [[c for c in clients if c % NODES == node] for node in range(NODES)]
        down = sum(size(write_orders(terms, [order(c) for c in group])) for group in groups if group)
        up = sum(
            size(write_outcomes([replace(outcome, client=c) for c in group])) for group in groups if group
        )
        return np.array([down, up])

    update, score = Outcome(0, reply.tensors, IMAGES, 0.1), Outcome(0, score=(1, 2))
    rounds = [sample_clients(roster.training_clients, config, number) for number in range(config.rounds)]
    trained = np.mean([total(clients, update) for clients in rounds], axis=0).round().astype(int)
    served = [c for c in range(CLIENTS) if own.supports_heldout or not heldout[c]]
    counted = [count_bytes(tensors) for tensors in (own.download(state, 0, 0).tensors, reply.tensors)]
    values = [*(config.clients_per_round * np.array(counted)), *trained, *total(served, score)]
    print("|", " | ".join([method, *(f"{value:,}" for value in values)]), "|")


if __name__ == "__main__":
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    for name in ("pep", "fedvpt", "ppt", "pfedpg"):
        count(name)
