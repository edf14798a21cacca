"""Sending to nodes and waiting for their replies, never longer than allowed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


@dataclass(frozen=True)
class Network:
    """The nodes that are connected through Flower's grid."""

    grid: Grid
    poll: float = 0.5
    """Seconds between looking for replies."""

    def nodes(self) -> set[int]:
        """Return the ids of the nodes that are connected now."""
        return set(self.grid.get_node_ids())

    def ask(
        self, kind: str, contents: Mapping[int, RecordDict], timeout: float
    ) -> dict[int, RecordDict | str]:
        """Send each node its message; return each node's reply, or why there is none."""
        messages = [
            Message(content, dst_node_id=node, message_type=kind, ttl=timeout)
            for node, content in contents.items()
        ]
        pushed = list(self.grid.push_messages(messages))
        waiting = dict(zip(pushed, contents, strict=False))
        answers: dict[int, RecordDict | str] = dict.fromkeys(contents, f"no answer within {timeout:g} s")
        deadline = time.monotonic() + timeout
        while waiting and time.monotonic() < deadline:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                answers[node] = _reason(reply) if reply.has_error() else reply.content
            if waiting:
                time.sleep(min(self.poll, max(0.0, deadline - time.monotonic())))
        return answers


def _reason(reply: Message) -> str:
    return f"its node failed: {reply.error.reason or reply.error.code}"
