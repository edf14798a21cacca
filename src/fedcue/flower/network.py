"""Sending to nodes and waiting for their replies, never longer than allowed."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedcue.flower.reasons import cleaned

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Network:
    """The nodes that are connected through Flower's grid."""

    grid: Grid
    poll: float = 0.5
    """Seconds between looking for replies."""
    keys: bool = True
    """Whether nodes are known by their keys; keys of an insecure deployment last as long as a process."""

    def nodes(self) -> dict[int, str]:
        """Return the nodes that are connected now, each with the hash of its public key, if it has one."""
        if not self.keys:
            return dict.fromkeys(self.grid.get_node_ids(), "")
        return {node.node_id: _print(node.public_key) for node in self.grid.get_nodes()}

    def ask(
        self, kind: str, contents: Mapping[int, RecordDict], timeout: float
    ) -> dict[int, RecordDict | str]:
        """Send each node its message; return each node's reply, or the reason why there is none."""
        waiting = self.send(kind, contents, timeout)
        answers: dict[int, RecordDict | str] = dict.fromkeys(contents, silence(timeout))
        deadline = time.monotonic() + timeout
        while True:
            answers |= self.collect(waiting)
            left = deadline - time.monotonic()
            if not waiting or left <= 0:
                return answers
            time.sleep(min(self.poll, left))

    def send(self, kind: str, contents: Mapping[int, RecordDict], timeout: float) -> dict[str, int]:
        """Send each node its message; return the nodes by the names of the messages that were sent."""
        messages = [
            Message(content, dst_node_id=node, message_type=kind, ttl=timeout)
            for node, content in contents.items()
        ]
        pushed = list(self.grid.push_messages(messages))
        return {key: node for key, node in zip(pushed, contents, strict=False) if key}

    def collect(self, waiting: dict[str, int]) -> dict[int, RecordDict | str]:
        """Return the replies that are there, and take them off the list of what is waited for."""
        answers: dict[int, RecordDict | str] = {}
        for key, node in list(waiting.items()):
            answer = self._answer(key)
            if answer is not None:
                answers[node] = answer
                del waiting[key]
        return answers

    def _answer(self, key: str) -> RecordDict | str | None:
        """Return the reply to one message, or why it cannot be read; nothing if there is none yet.

        Replies are fetched one by one: one that cannot be read takes no other with it. Whose reply it is
        follows from what was asked for, since the reply's own words may claim anything.
        """
        try:
            for reply in self.grid.pull_messages([key]):
                if reply.metadata.reply_to_message_id != key:
                    return "its node's reply is to another message"
                if reply.has_error():
                    return cleaned(f"its node failed: {reply.error.reason or reply.error.code}")
                return reply.content
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            return f"the SuperLink cannot pass on its node's reply ({error.response.status_code})"
        except (httpx.HTTPError, OSError):
            raise
        except Exception as error:  # Flower's readers raise whatever a node's bytes make them raise
            log.warning("A reply cannot be read: %s", cleaned(f"{type(error).__name__}: {error}"))
            return f"its node's reply cannot be read ({type(error).__name__})"
        return None


def silence(timeout: float) -> str:
    """Return the reason of a node that sent nothing."""
    return f"no answer within {timeout:g} s"


def _print(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest() if key else ""
