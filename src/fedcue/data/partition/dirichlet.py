"""Label skew drawn from a Dirichlet distribution, in the two published ways."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from fedcue.data.apportion import Counts, Integers, in_blocks, largest_remainder, share_test, tally
from fedcue.data.dataset import Indices
from fedcue.data.partition.base import LabelSkew
from fedcue.errors import PartitionError

ATTEMPTS = 50
_TRIES = 4


class Dirichlet(LabelSkew):
    """Label proportions drawn from a Dirichlet distribution with concentration ``alpha``.

    ``equal``: clients of equal size, each with its own class proportions (as FedDyn). ``class``: each
    class has its own proportions over the clients, whose sizes differ (as NIID-Bench).
    """

    name: ClassVar[str] = "dirichlet"

    alpha: float = Field(gt=0, description="small: few classes per client; large: nearly iid")
    flavour: Literal["equal", "class"] = Field("equal", description="what the proportions are drawn for")
    min_train: PositiveInt = Field(10, description="smallest client that flavour=class accepts")

    def counts(self, train: Indices, test: Indices, generator: np.random.Generator) -> Counts:
        """Draw the proportions and turn them into counts."""
        if self.flavour == "equal":
            return _equal_sizes(train, test, self.clients, self.alpha, generator)
        return by_class(train, test, self.clients, self.alpha, self.min_train, generator)


def _equal_sizes(
    train: Integers, test: Integers, clients: int, alpha: float, generator: np.random.Generator
) -> Counts:
    """Fill clients of equal size, each from its own class proportions q ~ Dir(alpha), as FedDyn does."""
    total = int(train.sum())
    sizes = total // clients + (generator.permutation(clients) < total % clients)
    counts = fill(sizes, log_dirichlet(alpha, clients, len(train), generator), train, generator)
    return Counts(counts, share_test(counts, counts, test, generator))


def fill(
    sizes: Integers, log_q: NDArray[np.float64], supply: Integers, generator: np.random.Generator
) -> Integers:
    """Fill clients of these sizes from their proportions q until all of ``supply`` is used up.

    The rule: pick a random client that is not full, draw a class from its q, draw again while that class
    is used up. The same distribution without the loop:

    1. Order. Let every client have a clock with exponential gaps; sorting all rings gives the sequence of
       uniform picks among the clients not yet full. Ring number t is one "slot".
    2. Classes. Slots in turn taking the first class of their own random list that is not used up is a
       serial dictatorship. Its outcome is the only stable one, so deferred acceptance finds it for all
       slots at once: everybody asks for a class, each class keeps its earliest slots, the others ask again
       among the classes that could still take them.
    """
    rings = np.cumsum(generator.exponential(size=(len(sizes), int(sizes.max()))), axis=1)
    rings[np.arange(rings.shape[1]) >= sizes[:, None]] = np.inf
    client = np.argsort(rings, axis=None)[: sizes.sum()] // rings.shape[1]  # [slots], in order of time
    label = _defer(client, log_q, supply, generator)
    return tally(client, label, len(sizes), len(supply))


def by_class(
    train: Integers, test: Integers, clients: int, alpha: float, smallest: int, generator: np.random.Generator
) -> Counts:
    """Share every class by its own proportions p ~ Dir(alpha) over the clients, as NIID-Bench does.

    Clients already at the average size get nothing more. Draws are repeated until every client has at
    least ``smallest`` training images and one test image, at most ``ATTEMPTS`` times.
    """
    if train.sum() < smallest * clients:
        raise PartitionError(
            f"{clients} clients with at least {smallest} training images need {smallest * clients}, there "
            f"are {train.sum()}. Lower partition.clients or partition.min_train."
        )
    best = 0
    for _ in range(ATTEMPTS):
        counts = _one_draw_by_class(train, clients, alpha, generator)
        best = max(best, int(counts.sum(axis=1).min()))
        if counts.sum(axis=1).min() >= smallest:
            shared = share_test(counts, counts, test, generator)
            if shared.any(axis=1).all():
                return Counts(counts, shared)
    raise PartitionError(
        f"alpha={alpha:g} with {clients} clients left a client with fewer than {smallest} training images or "
        f"no test image in each of {ATTEMPTS} draws (best smallest client: {best}). Raise partition.alpha, "
        "lower partition.clients or partition.min_train, or use partition.flavour=equal."
    )


def log_dirichlet(
    alpha: float, clients: int, classes: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Draw log q, q ~ Dir(alpha), for each client; in logarithms no proportion underflows to zero.

    Uses Gamma(a) = Gamma(a + 1) * U^(1/a).
    """
    shape = (clients, classes)
    log_gamma = np.log(generator.standard_gamma(alpha + 1, shape)) - generator.exponential(size=shape) / alpha
    return log_gamma - np.logaddexp.reduce(log_gamma, axis=1, keepdims=True)


def _relative(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return exp(logits) relative to the largest along the last axis; what would be denormal is zero.

    Arithmetic with denormal numbers is a hundred times slower.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    weights: NDArray[np.float64] = np.exp(np.where(shifted < -600, -np.inf, shifted))
    return weights


def _defer(
    client: Integers, log_q: NDArray[np.float64], capacity: Integers, generator: np.random.Generator
) -> Integers:
    """Give every slot (in order of time) a class by deferred acceptance; see ``fill``."""
    slots, classes = len(client), len(capacity)
    log_q = np.where(capacity > 0, log_q, -np.inf)
    ladder = np.cumsum(_relative(log_q), axis=1)
    ladder = ladder / ladder[:, -1:] + np.arange(len(ladder))[:, None]  # client k climbs from k to k + 1
    label = np.empty(slots, dtype=np.int64)
    last_kept = np.full(classes, slots)  # the latest slot that each class would still take
    asking = np.arange(slots)
    while len(asking):
        label[asking] = _ask(client[asking], asking, ladder, log_q, last_kept, generator)
        order = np.argsort(label, kind="stable")
        starts = np.cumsum([0, *np.bincount(label, minlength=classes)])
        rank = np.arange(slots) - starts[label[order]]
        asking = np.sort(order[rank >= capacity[label[order]]])
        full = np.flatnonzero(np.diff(starts) >= capacity)
        last_kept[full] = order[starts[full] + capacity[full] - 1]
    return label


def _ask(
    client: Integers,
    slot: Integers,
    ladder: NDArray[np.float64],
    log_q: NDArray[np.float64],
    last_kept: Integers,
    generator: np.random.Generator,
) -> Integers:
    """Draw a class for each slot from its client's proportions over the classes that would take it.

    A few draws from all classes come first; only who was refused each time pays for an exact list.
    """
    chosen = np.empty(len(slot), dtype=np.int64)
    refused = np.arange(len(slot))
    for _ in range(_TRIES):
        who = client[refused]
        step = np.searchsorted(ladder.ravel(), who + generator.random(len(who)), side="right")
        chosen[refused] = np.minimum(step - who * ladder.shape[1], ladder.shape[1] - 1)
        refused = refused[last_kept[chosen[refused]] <= slot[refused]]
    for part in in_blocks(refused, len(last_kept)):
        logits = np.where(last_kept > slot[part, None], log_q[client[part]], -np.inf)
        weights = np.cumsum(_relative(logits), axis=1)
        chosen[part] = (weights <= generator.random((len(part), 1)) * weights[:, -1:]).sum(axis=1)
    return chosen


def _one_draw_by_class(
    train: Integers, clients: int, alpha: float, generator: np.random.Generator
) -> Integers:
    average = train.sum() / clients
    sizes = np.zeros(clients, dtype=np.int64)
    counts = np.zeros((clients, len(train)), dtype=np.int64)
    log_p = log_dirichlet(alpha, len(train), clients, generator)  # [C, n]
    for label in np.flatnonzero(train):
        open_log_p = np.where(sizes < average, log_p[label], -np.inf)
        weights = _relative(open_log_p)[:, None]
        counts[:, label] = largest_remainder(weights, train[label : label + 1], generator)[:, 0]
        sizes += counts[:, label]
    return counts
