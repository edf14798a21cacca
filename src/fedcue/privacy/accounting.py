"""What a run has spent of its privacy budget, by Google's dp-accounting.

Neighbouring federations differ in one training record of one client, or in one client with all its
records, which is replaced by any other (replace-one). Every release is a Gaussian mechanism whose noise
is ``noise`` times the most that one such unit can change it. Gaussian releases compose exactly; only
secret samples need Renyi's bound.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
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

    If it is known who takes part in which round, a record is touched only by the releases of its
    own client, and the client with most of them bounds all. If the sample of ``sample`` out of
    ``clients`` is secret, every round touches every record with that probability. This second
    account needs releases that are bounded for a whole client and not only for one record, since
    it compares rounds with and without the client: it holds for clipped updates, not for class sums.
    """

    sample: int | None = None
    clients: int = 0
    rounds: int = 0
    releases: Counter[int] = field(default_factory=Counter)

    def add(self, clients: Iterable[int], releases: int) -> None:
        """Record a round (or the warm start) in which each of ``clients`` releases so many times."""
        self.rounds += 1
        for client in clients:
            self.releases[client] += releases

    def after(self, clients: Iterable[int], releases: int) -> Ledger:
        """Return the ledger as it would be after such a round."""
        ledger = replace(self, releases=self.releases.copy())
        ledger.add(clients, releases)
        return ledger

    @property
    def most(self) -> int:
        """Releases of the client with most of them."""
        return max(self.releases.values(), default=0)

    @property
    def total(self) -> int:
        """Releases of all clients together."""
        return self.releases.total()

    def epsilon(self, noise: float, delta: float) -> float:
        """Return the epsilon spent so far at ``delta``."""
        if self.most and self.sample is None:
            return _exact(noise / math.sqrt(self.most), delta)
        return self.renyi(noise, delta)

    def renyi(self, noise: float, delta: float) -> float:
        """Return Renyi's bound on it, which is never less."""
        return _renyi(noise, delta, *self._spent) if self.most else 0.0

    def noise_for(self, epsilon: float, delta: float) -> float:
        """Return the least noise with which all of it spends no more than ``epsilon``."""
        dp = _accounting()
        if self.sample is None:
            return float(dp.get_sigma_gaussian(epsilon, delta) * math.sqrt(self.most)) * (1 + 1e-9)

        def event(noise: float) -> Any:
            return _event(noise, *self._spent)

        bracket = dp.LowerEndpointAndGuess(1e-3, 1.0)
        return float(dp.calibrate_dp_mechanism(_accountant, event, epsilon, delta, bracket, tol=1e-4))

    @property
    def accountant(self) -> str:
        """Say which accountant counts, and its version."""
        from importlib.metadata import version

        how = "exact composition of Gaussian releases" if self.sample is None else "Renyi"
        return f"dp-accounting {version('dp-accounting')}, {how}"

    @property
    def _spent(self) -> tuple[int, int, int]:
        return (self.most, 0, 0) if self.sample is None else (self.rounds, self.sample, self.clients)


def _event(noise: float, count: int, sample: int, clients: int) -> Any:
    """Return ``count`` Gaussian releases, each of a secret sample if there is one."""
    dp = _accounting()
    release = dp.GaussianDpEvent(noise)
    if sample:
        release = dp.SampledWithoutReplacementDpEvent(clients, sample, release)
    return dp.SelfComposedDpEvent(release, count)


@lru_cache
def _exact(noise: float, delta: float) -> float:
    """Return the epsilon of one Gaussian release; several are one with less noise."""
    return float(_accounting().get_epsilon_gaussian(noise, delta))


@lru_cache
def _renyi(noise: float, delta: float, count: int, sample: int, clients: int) -> float:
    accountant = _accountant()
    accountant.compose(_event(noise, count, sample, clients))
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
