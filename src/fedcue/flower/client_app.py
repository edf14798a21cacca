"""The client's half of a deployment: a Flower ClientApp over the unchanged methods.

Every message has a process of its own, so it carries all it takes: the terms, and the
orders for every client of the node that has something to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedcue.errors import ClientError, FedcueError
from fedcue.flower.messages import (
    Order,
    Outcome,
    read_orders,
    write_members,
    write_outcomes,
    write_refusal,
)
from fedcue.flower.node import Node, open_node, open_vault
from fedcue.flower.reasons import told
from fedcue.flower.terms import Terms
from fedcue.flower.vault import Vault
from fedcue.types import Update

log = logging.getLogger(__name__)
app = ClientApp()


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """Tell the server which clients this node hosts, or why it cannot take part."""
    terms, _ = read_orders(message.content)
    try:
        content = write_members(open_node(terms, context.node_config).members())
    except Exception as error:  # the server can only name the reason if it hears of it
        content = write_refusal(_failure("joining", error))
    return Message(content, reply_to=message)


@app.train("warm_up")
def warm_up(message: Message, context: Context) -> Message:
    """Answer before round 0."""
    return _work(message, context, _warm_up)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that were sampled."""
    return _work(message, context, _train)


@app.train("secure")
def secure(message: Message, context: Context) -> Message:
    """Take the next step of a secure sum; nothing is trained, so neither images nor model are read."""
    return _work(message, context, _secure, open_vault)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test clients on their own images; only the numbers of right and of all images are sent."""
    return _work(message, context, _evaluate)


def _work(
    message: Message,
    context: Context,
    do: Callable[[Any, Order], Outcome],
    opened: Callable[[Terms, Mapping[str, Any]], Any] = open_node,
) -> Message:
    """Carry out the orders one by one; a client that fails does not stop the others."""
    terms, orders = read_orders(message.content)
    outcomes = []
    for order in orders:
        try:
            outcomes.append(do(opened(terms, context.node_config), order))
        except Exception as error:  # the others go on
            step = do.__name__.strip("_").replace("_", " ")
            outcomes.append(Outcome(order.client, failure=_failure(step, error, order.client)))
    return Message(write_outcomes(outcomes), reply_to=message)


def _warm_up(node: Node, order: Order) -> Outcome:
    node.release(order.client, first=True)
    reply = node.host.warm_up(order.client)
    return Outcome(order.client) if reply is None else _sent(node, order, reply, 0)


def _train(node: Node, order: Order) -> Outcome:
    download = order.download
    if download is None:
        raise ClientError("the server sent nothing to train from")
    memory = node.memories.load(order.client, order.memory)
    node.release(order.client, first=False)
    update, memory = node.host.train(download, memory)
    if node.host.table.kept:
        node.memories.save(order.client, order.memory, download.round, memory)
    return _sent(node, order, update, download.round + 1)


def _sent(node: Node, order: Order, update: Update, moment: int) -> Outcome:
    """Return an update as it is, or the first message of the secure sum that it is for: never its words."""
    if node.vault is None:
        return Outcome(order.client, update.tensors, update.samples, update.loss)
    if order.session is None:
        raise ClientError("the server asked for an update, and the settings for a secure sum")
    words = {name: tensor.numpy() for name, tensor in update.tensors.items()}
    return Outcome(order.client, message=node.vault.begin(order.client, order.session, moment, words))


def _secure(vault: Vault, order: Order) -> Outcome:
    if order.session is None:
        raise ClientError("the server named no secure sum")
    return Outcome(order.client, message=vault.answer(order.client, order.session, order.request))


def _evaluate(node: Node, order: Order) -> Outcome:
    download = order.download
    if download is None:
        raise ClientError("the server sent nothing to test")
    memory = node.memories.load(order.client, order.memory)
    prediction = node.host.test([order.client], download, memory, order.final)
    right = int((prediction.labels == prediction.predicted).sum())
    return Outcome(order.client, score=(right, len(prediction.labels)))


def _failure(step: str, error: Exception, client: int | None = None) -> str:
    """Write an error into the node's own log; return the reason that the server gets."""
    who = "the node" if client is None else f"client {client}"
    if isinstance(error, FedcueError):
        log.warning("%s: %s: %s", who, step, error)
    else:
        log.exception("%s: %s: a bug, not a failure of the client", who, step)
    return told(error, step)
