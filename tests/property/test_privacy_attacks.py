"""Attacks on everything that is released: two neighbouring datasets are told apart no better than is claimed.

Every pair differs as much as it can. What clients do to it is the package's own code; then so many runs are
drawn at once, each a copy of the message along a further axis, and an attacker who knows both messages scores
each release by its likelihood ratio. What is proven of epsilon stays below the claim; it exceeds the claim if
there is half of the noise, or if twice as much differs. ``ATTACK_DRAWS=200000`` draws more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from support.attacks import measured_epsilon
from support.tables import table_of
from torch import Tensor

from fedcue.aggregate.class_means import MomentSums
from fedcue.aggregate.mean import PlainAdding, Summing
from fedcue.aggregate.secure import Secure
from fedcue.methods.tensors import reply, trained, zeros
from fedcue.privacy import noise, shares
from fedcue.privacy.accounting import Ledger
from fedcue.privacy.adding import PrivateAdding
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.discrete import discrete_gaussian
from fedcue.privacy.guard import Protection, simulated_stream
from fedcue.privacy.sensitivity import MOMENTS
from fedcue.types import Update

pytest.importorskip("dp_accounting")

DRAWS = int(os.environ.get("ATTACK_DRAWS", "6000"))
DELTA, NOISE = 0.01, 1.0
CLASSES, WIDTH, ASKED = 3, 2, 4
Message = Mapping[str, Tensor]


class Bounded(DifferentialPrivacy):
    """Differential privacy for messages that are bounded already: copies of one are no longer message.

    Rare classes are dropped after the noise, which helps no attacker.
    """

    def bounded(self, update, reference, table):
        return update

    def drop_rare(self, sums, table):
        pass


@dataclass(frozen=True)
class Attacked:
    """What is released of two datasets that differ in one image or client, or in ``differ`` of them."""

    layers: int = 0
    """Of class sums; without any, trained changes are released."""
    moments: bool = False
    unit: str = "image"
    other_class: bool = False

    @property
    def table(self):
        if not self.layers:
            return table_of(trained("head", (WIDTH,), zeros))
        specs = [
            reply("centroids", (self.layers, CLASSES, WIDTH), "class_sums"),
            reply("holds", (CLASSES,), "class_counts"),
        ]
        return table_of(*specs, *([reply("moments", (3,), "moments")] if self.moments else []))

    def pair(self, differ: int) -> list[Message]:
        """Return the messages of both, as they are when the noise comes."""
        return [self._sent(sign, differ) for sign in (1, -1)]

    def _sent(self, sign: int, differ: int) -> Message:
        bounds = {"clip": 0.5 * differ, "client_bound": 4.0 * differ}
        privacy = DifferentialPrivacy(radius=2.0, unit=self.unit, **bounds)
        start = torch.full((WIDTH,), 0.25)
        if not self.layers:
            message = {"head": start + sign * torch.tensor([9.0, 0.0])}
        elif self.unit == "client":
            message = self._statistics(privacy, 50 * differ, 1, 0)
            message = {name: sign * tensor for name, tensor in message.items()}  # of no images at all
        else:
            message = self._statistics(privacy, differ, sign, int(self.other_class and sign < 0))
        return privacy.bounded(Update(0, 1, message), {"head": start}, self.table).tensors

    def _statistics(self, privacy, images: int, sign: int, label: int) -> dict[str, Tensor]:
        """Return those of equal images: the second dataset's are opposite, or at the worst angle."""
        cosine = 1.0
        if sign < 0:
            cosine = (0.0 if self.other_class else -MOMENTS / 2) if self.moments else -1.0
        vector = 9 * torch.tensor([cosine, math.sqrt(1 - cosine**2)])
        vectors = vector.expand(images, self.layers, WIDTH)
        sums, second = privacy.class_sums(CLASSES, lambda: None), MomentSums()
        sums.add(vectors, torch.full((images,), label))
        second.add(sums.shortened(vectors[:, 0]))
        return sums.reply() | ({"moments": second.reply(torch.float64)} if self.moments else {})


KINDS = {
    "changes": Attacked(),
    "changes of a client": Attacked(unit="client"),
    "class sums and counts": Attacked(layers=1),
    "class sums and counts, another class": Attacked(layers=1, other_class=True),
    "prototypes": Attacked(layers=3),
    "prototypes, another class": Attacked(layers=3, other_class=True),
    "second moments": Attacked(layers=1, moments=True),
    "second moments, another class": Attacked(layers=1, moments=True, other_class=True),
    "prototypes of a client": Attacked(layers=3, unit="client"),
    "second moments of a client": Attacked(layers=1, moments=True, unit="client"),
}


def central(privacy: Bounded, table, message: Message, seed: int) -> Message:
    """Return the sums that a trusted server releases: of this client and of one who changes nothing."""
    stream = simulated_stream(seed)
    adding = PrivateAdding(privacy, PlainAdding(Summing(table)), {}, table, lambda: stream("server"))
    for sent in (message, {name: torch.zeros_like(tensor) for name, tensor in message.items()}):
        adding.add(Update(0, 1, sent))
    return adding.sums().tensors


def local(privacy: Bounded, table, message: Message, seed: int) -> Message:
    """Return what a client sends to a server that it does not trust."""
    return privacy.leave(Update(0, 1, message), {}, table, lambda: simulated_stream(seed)("client")).tensors


def distributed(privacy: Bounded, table, message: Message, seed: int) -> Message:
    """Return a secure sum of the fewest clients it may have, of whom one tells the server its noise."""
    rule = Secure(threshold=0.5)
    of = Protection(rule, privacy, Summing(table), simulated_stream(seed), (ASKED, ASKED))
    adding, known = of.adding({}, 0), {}
    for client in range(rule.needed(ASKED)):
        sent = message if client == 0 else {name: torch.zeros_like(t) for name, t in message.items()}
        guard = of.guard(client, 0)
        words = guard.leave(Update(client, 1, sent), {})
        adding.add(words)
        known = words.tensors  # the last client's: it sends nothing but its noise
    sums = adding.sums().tensors
    return {
        name: sums[name] - torch.from_numpy(rule.fixed_point.numbers(known[name].numpy())) for name in sums
    }


PLACES: dict[str, Callable[..., Message]] = {"central": central, "local": local, "distributed": distributed}


def proven(attacked: Attacked, where: str, differ: int = 1) -> float:
    """Return the epsilon that the attack proves."""
    table, pair = attacked.table, attacked.pair(differ)
    bounds = {"clip": 0.5, "client_bound": 4.0, "radius": 2.0, "unit": attacked.unit}
    privacy = Bounded(where=where, noise=NOISE, colluding=int(where == "distributed"), **bounds)
    moves, scores = privacy.moves(pair[0], table), []
    for number, message in enumerate(pair):
        many = {
            name: tensor[..., None].expand(*tensor.shape, DRAWS).clone() for name, tensor in message.items()
        }
        released = PLACES[where](privacy, table, many, number)
        weights = {name: (pair[0][name] - pair[1][name]) / moves[name] ** 2 for name in moves}
        scores.append(
            sum((released[name] * weights[name][..., None]).flatten(0, -2).sum(0) for name in moves)
        )
    return measured_epsilon(*scores, delta=DELTA)


STATED = Ledger(releases={0: 1}).epsilon(NOISE, DELTA)
EVERY = pytest.mark.parametrize("kind", KINDS)
EVERYWHERE = pytest.mark.parametrize("where", PLACES)


@EVERYWHERE
@EVERY
def test_an_attack_finds_something_and_no_more_than_is_claimed(kind, where):
    assert 0.4 * STATED < proven(KINDS[kind], where) < STATED


@EVERYWHERE
@EVERY
def test_an_attack_exceeds_the_claim_with_half_of_the_noise(kind, where, monkeypatch):
    def halved(count, deviation, stream):
        return discrete_gaussian(count, deviation // 2, stream)

    for module in (noise, shares):
        monkeypatch.setattr(module, "discrete_gaussian", halved)
    assert proven(KINDS[kind], where) > STATED


@EVERYWHERE
@EVERY
def test_an_attack_exceeds_the_claim_if_twice_as_much_differs(kind, where):
    """Twice the clip, two images instead of one, twice a client's bound."""
    assert proven(KINDS[kind], where, differ=2) > STATED
