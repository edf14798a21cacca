"""What stands between clients and server: noise and clipping on the way up, the rule of combining.

Noise comes from streams named by seed, client and round, so that a simulation can be repeated. Who
knows the seed can take the noise away again: a deployment gives ``fresh_stream`` instead.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Generator

from fedcue.aggregate.mean import Combine, Sums, Weighting
from fedcue.aggregate.privacy import Kinds, Privacy
from fedcue.aggregate.prototypes import CentroidSums
from fedcue.aggregate.robust import Aggregation
from fedcue.errors import ConfigError
from fedcue.methods.base import Method
from fedcue.rng import torch_rng
from fedcue.settings import RunConfig
from fedcue.types import Tensors, Update

Stream = Callable[..., Generator]
"""From names (``client`` or ``server``, a round) to the generator their noise is drawn with."""


def fresh_stream(*names: str | int) -> Generator:
    """Return a generator seeded by the operating system, whatever the names: noise nobody can repeat."""
    generator = Generator()
    generator.manual_seed(secrets.randbits(63))
    return generator


@dataclass(frozen=True)
class Guard:
    """The protection of one client during one visit."""

    privacy: Privacy
    kinds: Kinds
    generator: Generator

    def class_sums(self, classes: int) -> CentroidSums:
        """Return what the client gathers its class statistics with."""
        return self.privacy.class_sums(classes, self.generator)

    def leave(self, update: Update, reference: Tensors) -> Update:
        """Return the update as it leaves the client, which was sent ``reference``."""
        return self.privacy.leave(update, reference, self.kinds, self.generator)


@dataclass(frozen=True)
class Protection:
    """How updates leave clients and are combined, checked against what the method uploads."""

    aggregation: Aggregation
    privacy: Privacy
    kinds: Kinds
    stream: Stream

    @classmethod
    def of(cls, config: RunConfig, privacy: Privacy, stream: Stream | None = None) -> Protection:
        """Return the protection a configuration asks for; ``privacy`` has its noise settled."""
        stream = stream or partial(torch_rng, config.seed, "privacy")
        return cls(config.aggregate, privacy, config.method.kinds(), stream)

    def guard(self, client: int, moment: int | str) -> Guard:
        """Return the protection of one client at the warm start or in a round."""
        return Guard(self.privacy, self.kinds, self.stream(client, moment))

    def combine(self, reference: Tensors, moment: int | str) -> Combine:
        """Return how the server combines updates of clients that were all sent ``reference``."""
        rule = self.aggregation.combiner(reference)
        if not self.aggregation.plain:
            rule = _of_class_means(rule, self.kinds)
        return self.privacy.combiner(rule, reference, self.kinds, self.stream("server", moment))


def _of_class_means(combine: Combine, kinds: Kinds) -> Combine:
    """Let the class means of all clients count alike: what one claims of its images is not trusted."""

    def of_means(
        updates: Iterable[Update], weighting: Weighting = "uniform", plain: tuple[str, ...] = ()
    ) -> Sums:
        return combine([_class_means(update, kinds) for update in updates], weighting, plain)

    return of_means


def _class_means(update: Update, kinds: Kinds) -> Update:
    """Return class means, and as holder of a class who has both a count and a mean of it."""
    tensors = dict(update.tensors)
    for name in [name for name in tensors if kinds.get(name) == "class_counts"]:
        counts = tensors[name]
        if counts.is_floating_point():  # noise is on them
            continue
        for sums in [other for other in tensors if kinds.get(other) == "class_sums"]:
            means = torch.nan_to_num(tensors[sums], nan=0.0) / counts.long().clamp(min=1)[:, None]
            tensors[name] = (counts > 0) & (means != 0).any(-1).all(0)
            tensors[sums] = torch.where(tensors[name][:, None], means, 0.0)
    return replace(update, tensors=tensors)


def check_protection(config: RunConfig) -> None:
    """Raise a ``ConfigError`` where method, rule and privacy do not go together."""
    method, aggregation, privacy = config.method, config.aggregate, config.privacy
    aggregation.check(config.clients_per_round)
    privacy.check(method.name, uploads(method), method.kinds())
    central = getattr(privacy, "where", None) == "central"
    if central and not aggregation.plain:
        raise ConfigError(
            "privacy.where=central knows the sensitivity of a plain mean only. "
            "Give aggregate=mean without norm_bound, or privacy.where=local."
        )
    if not aggregation.plain:
        _check_robust(method, aggregation)
    if method.replied() and config.warm_start != "all" and config.warm_start < aggregation.least:
        raise ConfigError(
            f"warm_start={config.warm_start} is too few for aggregate={aggregation.name}, which needs "
            f"{aggregation.least} answers. Give warm_start={aggregation.least} or more, or warm_start=all."
        )
    if method.weighting == "size" and (central or not aggregation.plain):
        reason = "privacy.where=central" if central else f"aggregate={_described(aggregation)}"
        raise ConfigError(
            f"method.weighting=size lets one client weigh more than others, which {reason} does not "
            "allow. Give method.weighting=uniform."
        )


def uploads(method: Method) -> tuple[str, ...]:
    """Return the names of all tensors a client sends, before round 0 or after."""
    return tuple(dict.fromkeys((*method.replied(), *method.returned())))


def _check_robust(method: Method, aggregation: Aggregation) -> None:
    """Refuse methods whose uploads are not all trained copies of what every client was sent."""
    kinds: dict[str, Any] = dict(method.kinds())
    bad = [name for name in uploads(method) if kinds.get(name, "own") == "own"]
    if bad:
        raise ConfigError(
            f"aggregate={_described(aggregation)} cannot protect {method.name}: there is no rule for its "
            f"{', '.join(bad)}. Give aggregate=mean, or another method."
        )


def _described(aggregation: Aggregation) -> str:
    bound = f" with norm_bound={aggregation.norm_bound}" if aggregation.norm_bound is not None else ""
    return aggregation.name + bound
