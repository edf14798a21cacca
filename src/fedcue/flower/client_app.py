"""The client's half of a deployment: a Flower ClientApp over the unchanged methods.

Flower starts a fresh process for every message, so a message carries all it takes: the terms, and the
orders for every client of the node that has something to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedcue.errors import ClientError, FedcueError
from fedcue.flower.host import Host, open_host
from fedcue.flower.messages import (
    Order,
    Outcome,
    read_orders,
    write_members,
    write_outcomes,
    write_refusal,
)

log = logging.getLogger(__name__)
app = ClientApp()


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """Tell the server which clients this node hosts, or why it cannot take part."""
    terms, _ = read_orders(message.content)
    try:
        content = write_members(open_host(terms, context.node_config).members())
    except Exception as error:  # the server can only name the reason if it hears of it
        content = write_refusal(_words(error))
    return Message(content, reply_to=message)


@app.train("warm_up")
def warm_up(message: Message, context: Context) -> Message:
    """Answer before round 0."""
    return _work(message, context, _warm_up)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that were sampled."""
    return _work(message, context, _train)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test clients on their own images; only the numbers of right and of all images are sent."""
    return _work(message, context, _evaluate)


def _work(message: Message, context: Context, do: Callable[[Host, Order], Outcome]) -> Message:
    """Carry out the orders one by one; a client that fails does not stop the others."""
    terms, orders = read_orders(message.content)
    outcomes = []
    for order in orders:
        try:
            outcomes.append(do(open_host(terms, context.node_config), order))
        except Exception as error:  # whatever goes wrong is told to the server, by client
            log.warning("client %d: %s", order.client, error)
            outcomes.append(Outcome(order.client, failure=_words(error)))
    return Message(write_outcomes(outcomes), reply_to=message)


def _warm_up(host: Host, order: Order) -> Outcome:
    reply = host.site.warm_up(order.client)
    if reply is None:
        return Outcome(order.client)
    return Outcome(order.client, reply.tensors, reply.samples, reply.loss)


def _train(host: Host, order: Order) -> Outcome:
    download = order.download
    if download is None:
        raise ClientError("the server sent nothing to train from")
    memory = host.memories.load(order.client, order.memory)
    update, memory = host.site.train(download, memory)
    if host.site.method.keeps_memory:
        host.memories.save(order.client, order.memory, download.round, memory)
    return Outcome(order.client, update.tensors, update.samples, update.loss)


def _evaluate(host: Host, order: Order) -> Outcome:
    download = order.download
    if download is None:
        raise ClientError("the server sent nothing to test")
    memory = host.memories.load(order.client, order.memory)
    prediction = host.site.test([order.client], download, memory, order.final)
    right = int((prediction.labels == prediction.predicted).sum())
    return Outcome(order.client, score=(right, len(prediction.labels)))


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, FedcueError) else f"{type(error).__name__}: {error}"
