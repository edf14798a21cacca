"""A Flower grid in this process: every message is serialised as on a network, nodes can misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Wire
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedcue.flower.client_app import app

Reply = Callable[[Message, Context], Message]


@dataclass
class Node:
    """A node by its config; ``answer`` is what its ClientApp does."""

    config: dict[str, Any]
    answer: Reply = app
    connected: bool = True
    key: bytes = b""


@dataclass
class MemoryGrid(Grid):
    """Delivers at once; a node that raises answers with an error, one that returns nothing is silent."""

    members: dict[int, Node]
    pending: dict[str, Message] = field(default_factory=dict)
    bytes: int = 0
    sent: list[tuple[str, int]] = field(default_factory=list)
    numbers: Any = field(default_factory=count)
    fatal: tuple[type[Exception], ...] = ()
    """What ends the server instead of the node."""

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [number for number, node in self.members.items() if node.connected]

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=number, public_key=self.members[number].key) for number in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.pending.pop(key) for key in list(message_ids) if key in self.pending]

    def _deliver(self, message: Message) -> str:
        key = f"message-{next(self.numbers)}"
        message.metadata.__dict__["_message_id"] = key
        number = message.metadata.dst_node_id
        node = self.members[number]
        self.sent.append((message.metadata.message_type, number))
        context = Context(1, number, dict(node.config), RecordDict(), {})
        received = self._over_the_wire(message)
        try:
            reply = node.answer(received, context)
        except self.fatal:
            raise
        except Exception as error:
            reply = Message(Error(1, str(error)), reply_to=received)
        if reply is not None:
            self.pending[key] = self._over_the_wire(reply)
        return key

    def _over_the_wire(self, message: Message) -> Message:
        data = message_to_proto(message).SerializeToString()
        self.bytes += len(data)
        return message_from_proto(Wire.FromString(data))


def nodes(number: int, folder: Any) -> dict[int, Node]:
    """Return nodes that share the recipe's clients among them, each with a disk of its own."""
    return {
        100 + place: Node(
            {"partition-id": place, "num-partitions": number, "memory": str(folder / f"node-{place}")}
        )
        for place in range(number)
    }
