"""A run's engine whose clients are on other machines."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict

from fedcue.aggregate.secure import Secure, word_shapes
from fedcue.config.settings import RunConfig
from fedcue.errors import ClientError, FedcueError
from fedcue.evaluate.accuracy import Accuracies
from fedcue.flower.enrolment import Enrolment
from fedcue.flower.expected import Expected, ExpectedMessage, expected_replies
from fedcue.flower.messages import EVALUATE, JOIN, SECURE, TRAIN, WARM_UP, Order, Outcome, write_orders
from fedcue.flower.network import Network, silence
from fedcue.flower.replies import read_members, read_outcomes
from fedcue.flower.sums import RunningSum, SumStore
from fedcue.flower.terms import Terms
from fedcue.model.vit import Architecture
from fedcue.rounds.engine import Failure, Insight
from fedcue.secure.fixed_point import Shapes, count_words
from fedcue.types import ClientMemory, Download, ServerState, Update

log = logging.getLogger(__name__)
_ROUND = "round"
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
    step: float = 120.0
    """For the replies in each further step of a secure sum."""


class FlowerEngine:
    """Clients on the nodes of a network, reached by their ids."""

    workers = 0

    def __init__(
        self,
        network: Network,
        config: RunConfig,
        terms: Terms,
        shape: Architecture,
        patience: Patience,
        enrolment: Enrolment,
        sums: SumStore,
    ) -> None:
        self.sums = sums
        self.rule = config.aggregate if isinstance(config.aggregate, Secure) else None
        self.network, self.patience, self.terms, self.enrolment = network, patience, terms, enrolment
        self._ask_again: dict[int, float] = {}
        """From node to the time at which it is asked to join again."""
        self._joining: dict[str, int] = {}
        """From message to node: who was asked to join and has not answered yet."""
        self._answer_by: dict[int, float] = {}
        """From such a node to the time until which it may answer."""
        self._refusals: dict[int, str] = {}
        everyone = set(range(terms.clients))
        present = self._gather(everyone, terms.clients, enrolment.needed)
        self.roster = enrolment.begin(config, terms.classes, shape)
        present -= enrolment.left_out.keys()
        if len(present) < enrolment.needed:
            raise FedcueError(self._absence(everyone - present, enrolment.needed))
        if present < everyone:
            log.warning("The run goes without clients that are not there: %s.", _ids(everyone - present))
        settled = config.model_copy(update={"privacy": self.roster.budget.privacy})
        self.terms = replace(
            Terms.of(terms.run, settled, terms.classes, shape, terms.clients),
            domains=self.roster.sizes.domains,
            asked=self.roster.schedule.asked_first,
        )
        self.first_reply, self.reply, self.score = expected_replies(self.roster)

    # Who is there

    def _gather(self, clients: set[int], wanted: int, needed: int) -> set[int]:
        """Wait until so many of the clients are connected; return all that are."""
        deadline = time.monotonic() + self.patience.nodes
        places = self.enrolment.register.places
        while True:
            nodes = self.network.nodes()
            self._admit(nodes)
            present = {client for client in clients if places.get(client) in nodes}
            late = time.monotonic() > deadline
            if len(present) >= wanted or (late and (len(present) >= needed or not self._joining)):
                break
            time.sleep(self.network.poll)
        if len(present) < needed:
            raise FedcueError(self._absence(clients - present, needed))
        return present

    def _absence(self, missing: set[int], needed: int) -> str:
        reasons = "".join(f" Node {node} was refused: {why}." for node, why in self._refusals.items())
        reasons += "".join(f" Client {client}: {why}." for client, why in self.enrolment.left_out.items())
        return (
            f"Fewer than {needed} clients were connected for node_timeout={self.patience.nodes:g} s; "
            f"missing: {_ids(missing)}.{reasons} Start their SuperNodes or mend them, then run again: the "
            "run goes on from its last checkpoint. Give min_clients=N to start with N of them."
        )

    def _admit(self, nodes: Mapping[int, str]) -> None:
        """Ask new nodes to join, and admit those that answered; a silent node is not waited for.

        A refused node is asked again after a while.
        """
        now = time.monotonic()
        self._ask_again = {node: when for node, when in self._ask_again.items() if node in nodes}
        self._joining = {key: node for key, node in self._joining.items() if node in nodes}
        asked = set(self._joining.values())
        new = sorted(node for node in nodes if node not in asked and self._ask_again.get(node, 0.0) <= now)
        if new:
            contents = {node: write_orders(self.terms, []) for node in new}
            self._joining |= self.network.send(JOIN, contents, self.patience.round)
            self._answer_by |= dict.fromkeys(new, now + self.patience.round)
        answers = self.network.collect(self._joining)
        for key, node in list(self._joining.items()):
            if self._answer_by[node] <= now:
                del self._joining[key]
                answers[node] = silence(self.patience.round)
        for node in sorted(answers):
            self._let_in(node, answers[node], nodes)

    def _let_in(self, node: int, answer: RecordDict | str, nodes: Mapping[int, str]) -> None:
        """Let a node's clients take part if its answer to joining is right."""
        try:
            members = read_members(answer, self.terms.clients)
            if self.rule is not None and not all(member.identity for member in members):
                raise ClientError("it has no key for secure sums")
            self.enrolment.admit(node, nodes[node], members, nodes)
            self._refusals.pop(node, None)
            self._ask_again[node] = float("inf")
        except ClientError as error:
            log.warning("Node %d is refused: %s.", node, error)
            self._refusals[node] = str(error)
            self._ask_again[node] = time.monotonic() + ASK_AGAIN

    # What they do

    def warm_up(self, clients: Iterable[int]) -> Iterator[Update | Failure]:
        """Yield the clients' warm-up replies, if the method has any."""
        if not self.first_reply.specs:
            return
        orders = [Order(client) for client in clients]
        if self.rule is not None:
            outcomes = self._summed(self.rule, WARM_UP, 0, orders, word_shapes(self.first_reply.specs))
        else:
            outcomes = self._carry_out(WARM_UP, orders, self.first_reply, len(orders), 1)
        for outcome in outcomes:
            yield outcome if isinstance(outcome, Failure) else _update(outcome)

    def train(
        self, jobs: Iterable[tuple[Download, ClientMemory]]
    ) -> Iterator[tuple[Update, ClientMemory] | Failure]:
        """Train clients; yield updates and where memories are, or failures, in the order of ``jobs``."""
        orders = [Order(download.client, download, _written(memory)) for download, memory in jobs]
        if self.rule is not None and orders:
            shapes = word_shapes(self.reply.specs, self.roster.method.added)
            outcomes = self._summed(self.rule, TRAIN, _round_of(orders[0]) + 1, orders, shapes)
        else:
            needed = min(self.roster.needed_updates, len(orders))
            outcomes = self._carry_out(TRAIN, orders, self.reply, needed, needed)
        for order, outcome in zip(orders, outcomes, strict=True):
            if isinstance(outcome, Failure):
                yield outcome
            else:
                yield _update(outcome), ClientMemory({_ROUND: torch.tensor(_round_of(order))})

    def evaluate(self, state: ServerState, memories: Mapping[int, ClientMemory], final: bool) -> Accuracies:
        """Ask every client the method can serve for its own accuracy."""
        roster, method, seed = self.roster, self.roster.method, self.roster.config.seed
        common = None if roster.table.kept else method.download(state, 0, roster.sizes, seed)
        orders = []
        for client in roster.tested():
            sent = method.download(state, client, roster.sizes, seed) if common is None else common
            written = _written(memories.get(client, ClientMemory()))
            orders.append(Order(client, Download(client, state.round, sent), written, final))
        joined = sum(order.client in self.enrolment.register.members for order in orders)
        wanted = joined if final else 1
        correct, total = np.zeros((2, len(roster)), dtype=np.int64)
        missing: dict[int, str] = {}
        for outcome in self._carry_out(EVALUATE, orders, self.score, wanted, 1):
            if isinstance(outcome, Failure):
                missing[outcome.client] = outcome.reason
            else:
                assert outcome.score is not None
                correct[outcome.client], total[outcome.client] = outcome.score
        return Accuracies(roster, correct, total, missing=missing).checked()

    def insight(
        self, state: ServerState, memories: Mapping[int, ClientMemory], accuracies: Accuracies
    ) -> Insight:
        """Return nothing: what clients hold stays with them."""
        return Insight()

    def news(self) -> dict[str, Any]:
        """Return nothing: the network's own tools show its nodes."""
        return {}

    def _summed(
        self, rule: Secure, kind: str, moment: int, orders: Sequence[Order], shapes: Shapes
    ) -> list[Outcome | Failure]:
        """Let clients work and add up their words step by step; no single one's is ever seen.

        ``moment`` is 0 before the first round and then the round's number.
        """
        asked, members = [order.client for order in orders], self.enrolment.register.members
        running = self.sums.find(moment, asked)
        if running is None:
            needed, words = rule.needed(len(asked)), count_words(shapes)
            present = self._gather(set(asked), len(asked) if kind == WARM_UP else needed, needed)
            keys = {client: bytes.fromhex(members[client].identity) for client in present}
            running = self.sums.begin(moment, asked, keys, needed, words, rule.fixed_point)
            self._step(running, kind, [order for order in orders if order.client in present])
        while running.goes_on:
            requests = running.server.requests()
            self._step(running, SECURE, [Order(client, request=requests[client]) for client in requests])
        return running.outcomes(shapes, members)

    def _step(self, running: RunningSum, kind: str, orders: Sequence[Order]) -> None:
        """Do one step of a secure sum with those who can be reached."""
        orders = [replace(order, session=running.session) for order in orders]
        wanted = min(running.server.lacking, len(orders))
        for outcome in self._carry_out(kind, orders, running.expected, wanted, 0):
            if isinstance(outcome, Failure):
                running.failures[outcome.client] = outcome.reason
        running.advance()

    def _carry_out(
        self,
        kind: str,
        orders: Sequence[Order],
        expected: Expected | ExpectedMessage,
        wanted: int,
        needed: int,
    ) -> list[Outcome | Failure]:
        """Send orders to the clients' nodes; return what came of each, in order."""
        present = self._gather({order.client for order in orders}, wanted, needed)
        places, members = self.enrolment.register.places, self.enrolment.register.members
        by_node: dict[int, list[Order]] = {}
        for order in orders:
            if order.client in present:
                by_node.setdefault(places[order.client], []).append(order)
        contents = {node: write_orders(self.terms, own) for node, own in by_node.items()}
        timeout = self.patience.step if kind == SECURE else self.patience.round
        answers = self.network.ask(kind, contents, timeout)
        outcomes: dict[int, Outcome | Failure] = {}
        for node, own in by_node.items():
            outcomes |= read_outcomes(answers[node], [order.client for order in own], expected, members)
        absent = "its node is not connected"
        return [outcomes.get(order.client, Failure(order.client, absent)) for order in orders]


def _update(outcome: Outcome) -> Update:
    return Update(outcome.client, outcome.samples, outcome.tensors, outcome.loss)


def _round_of(order: Order) -> int:
    assert order.download is not None, "clients train from what they are sent"
    return order.download.round


def _written(memory: ClientMemory) -> int | None:
    return int(memory.tensors[_ROUND]) if _ROUND in memory.tensors else None


def _ids(clients: set[int]) -> str:
    return ", ".join(map(str, sorted(clients)[:10])) + (" and others" if len(clients) > 10 else "")
