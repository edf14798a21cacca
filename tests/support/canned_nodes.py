"""Nodes that answer without a model: what honest clients say is written down, what liars say is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedcue.config.layers import resolve
from fedcue.flower.messages import (
    EVALUATE,
    JOIN,
    WARM_UP,
    Member,
    Outcome,
    read_orders,
    write_members,
    write_outcomes,
)
from fedcue.flower.terms import Terms
from fedcue.model.shapes import shape_of
from fedcue.types import Sizes, Tensors, TensorSpec
from support.memory_grid import Node

TRAIN_SIZE, TEST_SIZE = 20, 4
Lie = Callable[[str, RecordDict], RecordDict]
"""From a message type and an honest reply to what is sent instead."""


def members(clients: Sequence[int]) -> list[Member]:
    return [Member(client, f"client-{client}", "", False, TRAIN_SIZE, TEST_SIZE) for client in clients]


def canned(clients: Sequence[int], lie: Lie = lambda kind, reply: reply) -> Node:
    """Return a node whose clients send what they were sent, and the least class statistics."""

    def answer(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        terms, orders = read_orders(message.content)
        if kind == JOIN:
            reply = write_members(members(clients))
        elif kind == EVALUATE:
            reply = write_outcomes([Outcome(order.client, score=(1, TEST_SIZE)) for order in orders])
        else:
            specs = [spec for spec in uploads(terms) if (spec.replied if kind == WARM_UP else spec.returned)]
            loss = None if kind == WARM_UP else 0.5
            reply = write_outcomes(
                [Outcome(order.client, tensors(specs), TRAIN_SIZE, loss) for order in orders]
            )
        return Message(lie(kind, reply), reply_to=message)

    return Node({}, answer)


def uploads(terms: Terms) -> Sequence[TensorSpec]:
    config = resolve(terms.settings, {}, terms.settings["recipe"])
    shape = shape_of(config.backbone.name, config.backbone.image_size)
    sizes = Sizes(len(terms.classes), shape.width, shape.depth, shape.patch, terms.clients, terms.domains)
    return config.method.table(sizes).uploads


def tensors(specs: Sequence[TensorSpec]) -> Tensors:
    """Return an upload that is right in every respect."""
    made = {}
    for spec in specs:
        shape = [size or 0 for size in spec.shape]
        if spec.kind == "class_counts":
            made[spec.name] = torch.ones(shape, dtype=spec.dtype)
        elif spec.dtype.is_floating_point:
            made[spec.name] = torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape).to(spec.dtype)
        else:
            made[spec.name] = torch.ones(shape, dtype=spec.dtype)
    return made


def said(reply: RecordDict, change: Callable[[list[dict[str, Any]]], Any]) -> RecordDict:
    """Return a reply whose words are changed."""
    key = "members" if "members" in reply else "outcomes"
    lines = json.loads(str(reply[key]["json"]))
    changed = change(lines)
    reply[key] = ConfigRecord({"json": json.dumps(lines if changed is None else changed)})
    return reply
