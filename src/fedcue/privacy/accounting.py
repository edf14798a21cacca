"""What a run has spent of its privacy budget, by Google's dp-accounting.

Neighbouring federations differ in one training record of one client, or in one client with all its
records, which is replaced by any other (replace-one). Every release is a Gaussian mechanism whose noise
is ``noise`` times the most that one such unit can change it. Gaussian releases compose exactly; only
secret samples need Renyi's bound.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from fedcue.errors import ConfigError

ORDERS = (*(1 + step / 10 for step in range(1, 100)), *range(11, 65))
"""Renyi orders over which the accountant takes the best bound."""


@dataclass
class Ledger:
    """How often each client released something, or what secret samples were drawn.

    A release with other noise counts by the square of the ratio: Gaussian releases add up by one over the
    square of their noise.

    If it is known who takes part in which round, a record is touched only by the releases of its
    own client, and the client with most of them bounds all. If the sample of ``sample`` out of
    ``clients`` is secret, every round touches every record with that probability. This second
    account needs releases that are bounded for a whole client and not only for one record, since
    it compares rounds with and without the client: it holds for clipped updates, not for class sums.
    """

    sample: int | None = None
    clients: int = 0
    rounds: int = 0
    releases: dict[int, float] = field(default_factory=dict)

    def add(self, clients: Iterable[int], releases: float) -> None:
        """Record a round (or the warm start) in which each of ``clients`` releases so many times."""
        self.rounds += 1
        for client in clients:
            self.releases[client] = self.releases.get(client, 0) + releases

    def after(self, clients: Iterable[int], releases: float) -> Ledger:
        """Return the ledger as it would be after such a round."""
        ledger = replace(self, releases=self.releases.copy())
        ledger.add(clients, releases)
        return ledger

    @property
    def most(self) -> float:
        """Releases of the client with most of them."""
        return max(self.releases.values(), default=0)

    @property
    def total(self) -> float:
        """Releases of all clients together."""
        return sum(self.releases.values())

    def epsilon(self, noise: float, delta: float) -> float:
        """Return the epsilon spent so far at ``delta``."""
        return self.exact(noise, delta) if self.sample is None else self.renyi(noise, delta)

    def exact(self, noise: float, delta: float) -> float:
        """Return what is spent if everybody knows who took part: Gaussian releases compose exactly."""
        return _exact(noise / math.sqrt(self.most), delta) if self.most else 0.0

    def renyi(self, noise: float, delta: float) -> float:
        """Return Renyi's bound on what is spent; a secret sample makes it less."""
        if not self.most:
            return 0.0
        if self.sample is None:
            return _renyi(noise / math.sqrt(self.most), delta)
        return _renyi(noise, delta, self.rounds, (self.clients, self.sample))

    def noise_for(self, epsilon: float, delta: float) -> float:
        """Return the least noise with which all of it spends no more than ``epsilon``."""
        dp = _accounting()
        if self.sample is None:
            noise = float(dp.get_sigma_gaussian(epsilon, delta) * math.sqrt(self.most)) * (1 + 1e-9)
            while self.exact(noise, delta) > epsilon:  # both are found by search
                noise *= 1 + 1e-6
            return noise

        drawn = (self.clients, self.sample)

        def event(noise: float) -> Any:
            return _event(noise, self.rounds, drawn)

        bracket = dp.LowerEndpointAndGuess(1e-3, 1.0)
        return float(dp.calibrate_dp_mechanism(_accountant, event, epsilon, delta, bracket, tol=1e-4))

    @property
    def accountant(self) -> str:
        """Say which accountant counts, and its version."""
        from importlib.metadata import version

        how = "exact composition of Gaussian releases" if self.sample is None else "Renyi"
        return f"dp-accounting {version('dp-accounting')}, {how}"


def _event(noise: float, count: int, drawn: tuple[int, int] | None) -> Any:
    """Return ``count`` Gaussian releases, each of a secret sample if one is ``drawn`` of so many clients."""
    dp = _accounting()
    release = dp.GaussianDpEvent(noise)
    if drawn:
        release = dp.SampledWithoutReplacementDpEvent(*drawn, release)
    return dp.SelfComposedDpEvent(release, count)


@lru_cache
def _exact(noise: float, delta: float) -> float:
    """Return the epsilon of one Gaussian release; several are one with less noise."""
    return float(_accounting().get_epsilon_gaussian(noise, delta))


@lru_cache
def _renyi(noise: float, delta: float, count: int = 1, drawn: tuple[int, int] | None = None) -> float:
    accountant = _accountant()
    accountant.compose(_event(noise, count, drawn))
    return float(accountant.get_epsilon(delta))


def _accountant() -> Any:
    dp = _accounting()
    relation = dp.NeighboringRelation.REPLACE_ONE
    return importlib.import_module("dp_accounting.rdp").RdpAccountant(ORDERS, relation)


def _accounting() -> Any:
    try:
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise ConfigError(
            "privacy=dp needs the package dp-accounting, which is not installed. "
            "Give pip install 'fedcue[privacy]', or privacy=none."
        ) from error
