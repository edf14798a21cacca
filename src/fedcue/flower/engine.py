"""A run's engine whose clients are on other machines."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from flwr.app import RecordDict

from fedcue.clients.roster import Roster
from fedcue.config.settings import RunConfig
from fedcue.errors import ClientError, FedcueError
from fedcue.evaluate.accuracy import Accuracies
from fedcue.flower.messages import (
    EVALUATE,
    JOIN,
    TRAIN,
    UNUSABLE,
    WARM_UP,
    Member,
    Order,
    Outcome,
    read_members,
    read_outcomes,
    write_orders,
)
from fedcue.flower.network import Network
from fedcue.flower.replies import Expected, expected_replies
from fedcue.flower.terms import Terms
from fedcue.model.vit import Architecture
from fedcue.privacy.guard import fresh_stream
from fedcue.rounds.engine import Failure, Insight
from fedcue.types import ClientMemory, Download, ServerState, Update

log = logging.getLogger(__name__)
ROUND = "round"
"""A client's memory, as the server knows it: in which round it was written at the client."""


ASK_AGAIN = 20.0
"""Seconds after which a node that was refused may try again."""


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds."""

    round: float
    """For the replies of a round, however many clients are still silent."""
    nodes: float
    """For enough nodes to be connected."""


class FlowerEngine:
    """Clients on the nodes of a network, reached by their ids."""

    workers = 0

    def __init__(
        self, network: Network, config: RunConfig, terms: Terms, shape: Architecture, patience: Patience
    ) -> None:
        self.network, self.patience, self.terms = network, patience, terms
        self.places: dict[int, int] = {}
        """From client id to node."""
        self._members: dict[int, Member] = {}
        self._ask_again: dict[int, float] = {}
        """From node to the time at which it is asked to join again."""
        self._refusals: dict[int, str] = {}
        self._gather(set(range(terms.clients)), terms.clients)
        self.roster = self._roster(config, shape)
        settled = config.model_copy(update={"privacy": self.roster.budget.privacy})
        domains = self.roster.sizes.domains
        self.terms = replace(
            Terms.of(terms.run, settled, terms.classes, shape, terms.clients), domains=domains
        )
        self.first_reply, self.reply = expected_replies(self.roster)

    def _roster(self, config: RunConfig, shape: Architecture) -> Roster:
        members = [self._members[client] for client in range(self.terms.clients)]
        return Roster(
            config,
            config.data.name,
            self.terms.classes,
            shape,
            names=[member.name for member in members],
            domains=[member.domain for member in members],
            heldout=np.array([member.heldout for member in members]),
            train_sizes=np.array([member.train_size for member in members]),
            test_sizes=np.array([member.test_size for member in members]),
            stream=fresh_stream,
        )

    # Who is there

    def _gather(self, clients: set[int], wanted: int, needed: int | None = None) -> set[int]:
        """Wait until so many of the clients are connected; return all that are."""
        needed = wanted if needed is None else needed
        deadline = time.monotonic() + self.patience.nodes
        while True:
            nodes = self.network.nodes()
            self._admit(nodes)
            present = {client for client in clients if self.places.get(client) in nodes}
            if len(present) >= wanted or time.monotonic() > deadline:
                break
            time.sleep(self.network.poll)
        if len(present) < needed:
            raise FedcueError(self._absence(clients - present, needed))
        return present

    def _absence(self, missing: set[int], needed: int) -> str:
        reasons = "".join(f" Node {node} was refused: {why}." for node, why in self._refusals.items())
        ids = ", ".join(map(str, sorted(missing)[:10])) + (" and others" if len(missing) > 10 else "")
        return (
            f"Fewer than {needed} clients were connected for node_timeout={self.patience.nodes:g} s; "
            f"missing: {ids}.{reasons} Start their SuperNodes or mend them, then run again: the run goes on "
            "from its last checkpoint."
        )

    def _admit(self, nodes: set[int]) -> None:
        """Let nodes join that were not here before; a refused one is asked again after a while."""
        now = time.monotonic()
        self._ask_again = {node: when for node, when in self._ask_again.items() if node in nodes}
        new = {node for node in nodes if self._ask_again.get(node, 0.0) <= now}
        if not new:
            return
        contents = {node: write_orders(self.terms, []) for node in sorted(new)}
        for node, answer in self.network.ask(JOIN, contents, self.patience.round).items():
            try:
                members = answer if isinstance(answer, str) else read_members(answer)
                if isinstance(members, str):
                    raise ClientError(members)
                self._place(node, members, nodes)
                self._refusals.pop(node, None)
                self._ask_again[node] = float("inf")
            except UNUSABLE as error:
                log.warning("Node %d is refused: %s.", node, error)
                self._refusals[node] = str(error)
                self._ask_again[node] = time.monotonic() + ASK_AGAIN

    def _place(self, node: int, members: Sequence[Member], nodes: set[int]) -> None:
        for member in members:
            other = self.places.get(member.id)
            if other is not None and other != node and other in nodes:
                raise ClientError(f"its client {member.id} is already on node {other}")
            if not 0 <= member.id < self.terms.clients:
                raise ClientError(f"there is no client {member.id}: ids are 0 to {self.terms.clients - 1}")
        for member in members:
            self.places[member.id] = node
            self._members[member.id] = member

    # What they do

    def warm_up(self, clients: Iterable[int]) -> Iterator[Update | Failure]:
        """Yield the clients' warm-up replies, if the method has any."""
        if not self.first_reply.shapes:
            return
        orders = [Order(client) for client in clients]
        for outcome in self._carry_out(WARM_UP, orders, self.first_reply, len(orders), 1):
            yield outcome if isinstance(outcome, Failure) else _update(outcome)

    def train(
        self, jobs: Iterable[tuple[Download, ClientMemory]]
    ) -> Iterator[tuple[Update, ClientMemory] | Failure]:
        """Train clients; yield updates and where memories are, or failures, in the order of ``jobs``."""
        orders = [Order(download.client, download, _written(memory)) for download, memory in jobs]
        needed = min(self.roster.needed_updates, len(orders))
        for order, outcome in zip(
            orders, self._carry_out(TRAIN, orders, self.reply, needed, needed), strict=True
        ):
            if isinstance(outcome, Failure):
                yield outcome
            else:
                assert order.download is not None
                yield _update(outcome), ClientMemory({ROUND: torch.tensor(order.download.round)})

    def evaluate(self, state: ServerState, memories: Mapping[int, ClientMemory], final: bool) -> Accuracies:
        """Ask every client the method can serve for its own accuracy."""
        roster, method, seed = self.roster, self.roster.method, self.roster.config.seed
        common = None if roster.table.kept else method.download(state, 0, roster.sizes, seed)
        orders = []
        for client in roster.tested():
            sent = method.download(state, client, roster.sizes, seed) if common is None else common
            written = _written(memories.get(client, ClientMemory()))
            orders.append(Order(client, Download(client, state.round, seed, sent), written, final))
        wanted = len(orders) if final else 1
        correct, total = np.zeros((2, len(roster)), dtype=np.int64)
        missing: dict[int, str] = {}
        for outcome in self._carry_out(EVALUATE, orders, Expected.nothing(), wanted, 1):
            if isinstance(outcome, Failure):
                missing[outcome.client] = outcome.reason
            elif outcome.score is None:
                missing[outcome.client] = "it sent no score"
            else:
                correct[outcome.client], total[outcome.client] = outcome.score
        return Accuracies(roster, correct, total, missing=missing).checked()

    def insight(
        self, state: ServerState, memories: Mapping[int, ClientMemory], accuracies: Accuracies
    ) -> Insight:
        """Return nothing: what clients hold stays with them."""
        return Insight()

    def _carry_out(
        self, kind: str, orders: Sequence[Order], expected: Expected, wanted: int, needed: int
    ) -> list[Outcome | Failure]:
        """Send orders to the clients' nodes; return what came of each, in order."""
        present = self._gather({order.client for order in orders}, wanted, needed)
        by_node: dict[int, list[Order]] = {}
        for order in orders:
            if order.client in present:
                by_node.setdefault(self.places[order.client], []).append(order)
        contents = {node: write_orders(self.terms, own) for node, own in by_node.items()}
        answers = self.network.ask(kind, contents, self.patience.round)
        outcomes: dict[int, Outcome | Failure] = {}
        for node, own in by_node.items():
            outcomes |= self._outcomes(answers[node], own, expected)
        absent = "its node is not connected"
        return [outcomes.get(order.client, Failure(order.client, absent)) for order in orders]

    def _outcomes(
        self, answer: RecordDict | str, orders: Sequence[Order], expected: Expected
    ) -> dict[int, Outcome | Failure]:
        """Return the outcomes of a node's clients; what is not as expected is a failure."""
        found: dict[int, Outcome] = {}
        reason = "its node's reply does not speak of it"
        if isinstance(answer, str):
            reason = answer
        else:
            try:
                found = read_outcomes(answer, expected.most_bytes)
            except UNUSABLE as error:
                reason = f"its node's reply is not usable: {type(error).__name__}: {error}"[:500]
        return {order.client: self._judge(order.client, found, reason, expected) for order in orders}

    def _judge(
        self, client: int, found: Mapping[int, Outcome], reason: str, expected: Expected
    ) -> Outcome | Failure:
        outcome = found.get(client)
        if outcome is None or outcome.failure is not None:
            return Failure(client, reason if outcome is None else str(outcome.failure))
        try:
            expected.check(outcome.tensors)
            if outcome.tensors and outcome.samples != self.roster.train_sizes[client]:
                size = self.roster.train_sizes[client]
                raise ClientError(f"it claims {outcome.samples} images, but joined with {size}")
        except ClientError as error:
            return Failure(client, str(error))
        return outcome


def _update(outcome: Outcome) -> Update:
    return Update(outcome.client, outcome.samples, outcome.tensors, outcome.loss)


def _written(memory: ClientMemory) -> int | None:
    return int(memory.tensors[ROUND]) if ROUND in memory.tensors else None
