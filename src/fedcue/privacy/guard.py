"""What stands between clients and server: noise and clipping on the way up, the rule of adding up.

Noise comes from keystreams. Those of a simulation are named by seed, client and round and can be
repeated: who knows the seed can take the noise away again. Those of a deployment have keys of the
operating system and cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fedcue.aggregate.class_means import CentroidSums
from fedcue.aggregate.mean import Adding, Summing
from fedcue.aggregate.robust import Aggregation
from fedcue.aggregate.secure import Secure, zeros_of
from fedcue.errors import ConfigError
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.mechanisms import Privacy, Streams
from fedcue.privacy.shares import Shares
from fedcue.privacy.stream import NoiseStream
from fedcue.types import Tensors, TensorTable, Update

Stream = Callable[..., NoiseStream]
"""From names (``client`` or ``server``, a round) to the stream their noise is drawn from."""


def simulated_stream(seed: int) -> Stream:
    """Return the streams of a simulation: named by the run's seed."""
    return partial(NoiseStream.simulated, seed, "privacy")


@dataclass(frozen=True)
class Guard:
    """The protection of one client during one visit."""

    privacy: Privacy
    aggregation: Aggregation
    summing: Summing
    stream: Streams
    shares: Shares | None

    def class_sums(self, classes: int) -> CentroidSums:
        """Return what the client gathers its class statistics with."""
        return self.privacy.class_sums(classes, self.stream)

    def leave(self, update: Update, reference: Tensors) -> Update:
        """Return the update as it leaves the client, which was sent ``reference``."""
        table = self.summing.table
        update = self.privacy.leave(update, reference, table, self.stream)
        update = self.aggregation.leave(update, self.summing)
        if self.shares is None:
            return update
        return self.privacy.share(update, table, self.shares, self.stream)


@dataclass(frozen=True)
class Protection:
    """How updates leave clients and are added up, checked against what the method uploads."""

    aggregation: Aggregation
    privacy: Privacy
    summing: Summing
    """How the updates of a round are added up; replies before round 0 all count once, as they are."""
    stream: Stream
    asked: tuple[int, int]
    """How many clients are asked before round 0, and in a round."""

    @property
    def table(self) -> TensorTable:
        """The method's tensors."""
        return self.summing.table

    def guard(self, client: int, moment: int | str) -> Guard:
        """Return the protection of one client at the warm start or in a round."""
        stream = partial(self.stream, client, moment)
        return Guard(self.at(moment), self.aggregation, self._summing(moment), stream, self.shares(moment))

    def at(self, moment: int | str) -> Privacy:
        """Return what protects clients at the warm start or in a round."""
        return self.privacy.before_rounds() if moment == "warm up" else self.privacy

    def shares(self, moment: int | str) -> Shares | None:
        """Return over whom the noise of a sum is shared, if clients add it."""
        rule, privacy = self.aggregation, self.privacy
        if not (
            isinstance(rule, Secure) and isinstance(privacy, DifferentialPrivacy) and privacy.distributed
        ):
            return None
        asked = self.asked[0] if moment == "warm up" else self.asked[1]
        rule.fixed_point.check_clients(2 * asked)  # noise has half of the room
        return Shares(rule.fixed_point, rule.needed(asked) - privacy.colluding)

    def _summing(self, moment: int | str) -> Summing:
        return Summing(self.table) if moment == "warm up" else self.summing

    def adding(self, reference: Tensors, moment: int | str) -> Adding:
        """Return how the server adds up the updates of clients that were all sent ``reference``."""
        rule = self.aggregation.adding(reference, self._summing(moment))
        stream = partial(self.stream, "server", moment)
        return self.at(moment).adding(rule, reference, self.table, stream, self.shares(moment))


def check_protection(method: str, summing: Summing, aggregation: Aggregation, privacy: Privacy) -> None:
    """Raise a ``ConfigError`` where method, rule and privacy do not go together."""
    table = summing.table
    privacy.check(method, table)
    if not table.uploads and (aggregation.sums_only or not aggregation.plain):
        raise ConfigError(
            f"aggregate={aggregation.described} has nothing to add up: {method} sends nothing. "
            "Give aggregate=mean."
        )
    if aggregation.sums_only and table.each:
        raise ConfigError(
            f"aggregate={aggregation.name} shows the server nothing but sums, and {method} needs every "
            f"client's own {', '.join(sorted(table.each))}. Give aggregate=mean, or another method."
        )
    if privacy.distributed and not aggregation.sums_only:
        raise ConfigError(
            "privacy.where=distributed shares the noise among the clients of a secure sum. Give "
            "aggregate=secure, or privacy.where=local."
        )
    if privacy.central and aggregation.sums_only:
        raise ConfigError(
            "privacy.where=central trusts the server with single updates, which aggregate=secure does not "
            "show it. Give privacy.where=distributed, with about as much noise."
        )
    if privacy.central and not aggregation.plain:
        raise ConfigError(
            "privacy.where=central knows the sensitivity of a plain mean only. "
            "Give aggregate=mean without norm_bound, or privacy.where=local."
        )
    if not aggregation.plain:
        _check_robust(method, table, aggregation)
    summed = privacy.central or privacy.distributed
    if summed and not _leaves_alone(summing):
        raise ConfigError(
            f"privacy.where={'central' if privacy.central else 'distributed'} adds up what is clipped, but "
            f"{method} changes it once more (added). Give privacy.where=local, or another method."
        )
    if summing.weighting == "size" and (summed or not aggregation.plain):
        where = "central" if privacy.central else "distributed"
        reason = f"privacy.where={where}" if summed else f"aggregate={aggregation.described}"
        raise ConfigError(
            f"method.weighting=size lets one client weigh more than others, which {reason} does not "
            "allow. Give method.weighting=uniform."
        )


def _leaves_alone(summing: Summing) -> bool:
    """Say whether what a client sends is added up as it is."""
    update = zeros_of(summing.table)
    return summing.prepare(update) is update


def _check_robust(method: str, table: TensorTable, aggregation: Aggregation) -> None:
    """Refuse methods with uploads that no rule can tell good from bad, or that are needed one by one."""
    bad = [s.name for s in table.uploads if s.kind in (None, "moments") or s.name in table.each]
    if bad:
        raise ConfigError(
            f"aggregate={aggregation.described} cannot protect {method}: there is no rule for its "
            f"{', '.join(bad)}. Give aggregate=mean, or another method."
        )
