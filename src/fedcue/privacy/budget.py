"""Who is asked when, and the privacy that it costs: settled before a run starts, never exceeded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedcue.errors import BudgetSpent, ConfigError
from fedcue.privacy.accounting import Ledger
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.mechanisms import PaperNoise, Privacy
from fedcue.privacy.promise import AGAINST, FRESH, NOT_COVERED, SIMULATED, UNITS
from fedcue.privacy.sensitivity import CHANGES, STATISTICS
from fedcue.rng import rng
from fedcue.types import TensorSpec, TensorTable


@dataclass(frozen=True, eq=False)
class Schedule:
    """Who is asked when; only clients that train are ever drawn."""

    training: NDArray[np.int64]
    """Ids of the clients that train."""
    per_round: int
    rounds: int
    warm_start: Literal["all"] | int
    seed: int

    @property
    def clients(self) -> int:
        """Number of clients that may be drawn."""
        return len(self.training)

    def drawn(self, finished_rounds: int, attempt: int = 0) -> list[int]:
        """Draw the distinct clients of a round, in the order drawn; ``attempt`` counts repeated draws."""
        generator = rng(self.seed, "sampling", finished_rounds)
        for _ in range(attempt + 1):
            chosen = generator.choice(self.clients, size=self.per_round, replace=False)
        return [int(client) for client in self.training[chosen]]

    @property
    def asked_first(self) -> int:
        """Number of clients that are asked before round 0."""
        return self.clients if self.warm_start == "all" else min(self.warm_start, self.clients)

    def first(self) -> list[int]:
        """Return the clients that are asked before round 0: all of them, or a seeded sample."""
        chosen = rng(self.seed, "warm start").choice(self.training, size=self.asked_first, replace=False)
        return sorted(int(client) for client in chosen)


@dataclass
class Budget:
    """What has been spent; for a run without differential privacy there is nothing to spend."""

    privacy: Privacy
    table: TensorTable
    schedule: Schedule
    ledger: Ledger
    simulated: bool = True
    """Whether the noise follows from the seed of a simulation."""
    journal: Callable[[Sequence[int], float], None] | None = None
    """Called with who is about to release how often, where a release cannot be repeated bit for bit."""

    @classmethod
    def of(cls, privacy: Privacy, table: TensorTable, schedule: Schedule, records: int) -> Budget:
        """Return an untouched budget with the noise settled, or refuse a run that would exceed it."""
        sample = schedule.per_round if privacy.secret_sample else None
        budget = cls(privacy, table, schedule, Ledger(sample, schedule.clients))
        if isinstance(privacy, DifferentialPrivacy):
            _check_delta(privacy.delta, records)
            budget.privacy = budget._settled(privacy)
        return budget

    def fresh(self) -> Budget:
        """Return the same budget with nothing spent."""
        return replace(self, ledger=Ledger(self.ledger.sample, self.ledger.clients), journal=None)

    def planned(self) -> Budget:
        """Return the budget as it will be after the last round."""
        return replace(self, ledger=self.plan())

    def warm_up(self) -> None:
        """Count the releases of the warm start."""
        if isinstance(self.privacy, DifferentialPrivacy) and releases_before(self.table):
            self._release(self.privacy, self.schedule.first(), _worth(self.privacy), "The warm start")

    def visit(self, clients: Iterable[int], round_: int) -> None:
        """Count the releases of a round that is about to start, unless the budget does not allow it."""
        if isinstance(self.privacy, DifferentialPrivacy):
            releases = releases_of_a_visit(self.table)
            self._release(self.privacy, list(clients), releases, f"Round {round_ + 1}")

    def _release(
        self, privacy: DifferentialPrivacy, clients: Sequence[int], releases: float, when: str
    ) -> None:
        after = self.ledger.after(clients, releases)
        epsilon = after.epsilon(privacy.settled, privacy.delta)
        if epsilon > privacy.max_epsilon:
            raise BudgetSpent(
                f"{when} would spend epsilon={epsilon:.3f}, more than privacy.max_epsilon="
                f"{privacy.max_epsilon:g} (what is done again is spent twice). Give fewer rounds, more "
                "privacy.noise or a larger budget to a new run."
            )
        if self.journal is not None:
            self.journal(clients, releases)
        self.ledger = after

    def recount(self, journal: Iterable[tuple[Sequence[int], float]]) -> None:
        """Count again what a run's journal says was released."""
        for clients, releases in journal:
            self.ledger.add(clients, releases)

    def replay(self, records: Iterable[Mapping[str, Any]], attempts: int) -> None:
        """Count again what a run that is resumed has spent, rounds drawn again included."""
        self.warm_up()
        for record in records:
            known = record.get("attempts")
            for attempt in range(known or attempts):
                drawn = self.schedule.drawn(record["round"] - 1, attempt)
                self.visit(drawn, record["round"] - 1)
                if known is None and drawn == record["clients"]:
                    break

    @property
    def epsilon(self) -> float:
        """What has been spent so far (0 without differential privacy)."""
        privacy = self.privacy
        if not isinstance(privacy, DifferentialPrivacy):
            return 0.0
        return self.ledger.epsilon(privacy.settled, privacy.delta)

    @property
    def released(self) -> float:
        """How often clients released something under differential privacy, all together."""
        return self.ledger.total if isinstance(self.privacy, DifferentialPrivacy) else 0

    def metrics(self) -> dict[str, Any]:
        """Return what a round's record says of it."""
        return {"epsilon": self.epsilon} if isinstance(self.privacy, DifferentialPrivacy) else {}

    def summary(self) -> dict[str, Any]:
        """Return what the run's summary says of it."""
        privacy = self.privacy
        if isinstance(privacy, PaperNoise):
            label = "noise injection on prototypes, not differential privacy"
            return {"privacy": {"name": "paper", "label": label, "noise_epsilon": privacy.epsilon}}
        if not isinstance(privacy, DifferentialPrivacy):
            return {}
        noise, delta, against = privacy.settled, privacy.delta, AGAINST[privacy.where]
        if privacy.secret_sample:
            against += AGAINST["secret"]
        return {
            "privacy": {
                "name": "dp",
                "epsilon": self.epsilon,
                "delta": delta,
                "epsilon_by_renyi": self.ledger.renyi(noise, delta),
                "epsilon_by_exact_composition": self.ledger.exact(noise, delta),
                "unit": UNITS[privacy.unit],
                "neighbours": "replace-one",
                "where": privacy.where,
                "sample": privacy.sample,
                "noise_multiplier": noise,
                "noise_multiplier_before_rounds": privacy.head_noise,
                "epsilon_before_rounds": self.before_rounds().epsilon(noise, delta),
                "clip": privacy.clip,
                "releases_of_one_client": self.ledger.most,
                "noise": SIMULATED if self.simulated else FRESH,
                "accountant": self.ledger.accountant,
                "against": against,
                "not_covered": NOT_COVERED,
            }
        }

    def plan(self) -> Ledger:
        """Return the ledger as it will be after the last round, if no round is drawn again."""
        return self._visits(self.before_rounds())

    def before_rounds(self) -> Ledger:
        """Return the ledger as it is after what clients are asked for before round 0."""
        ledger = self.fresh().ledger
        if isinstance(self.privacy, DifferentialPrivacy) and releases_before(self.table):
            ledger.add(self.schedule.first(), _worth(self.privacy))
        return ledger

    def _settled(self, privacy: DifferentialPrivacy) -> DifferentialPrivacy:
        """Return the options with the noise they leave open; all rounds of the run must fit."""
        ratio = self._ratio(privacy)
        self.privacy = privacy.model_copy(update={"noise": 1.0, "head_noise": ratio})
        plan = self.plan()
        needed = plan.noise_for(privacy.max_epsilon, privacy.delta) if plan.most else 1.0
        noise = needed if privacy.noise is None else privacy.noise
        spent = plan.epsilon(noise, privacy.delta)
        if privacy.noise is not None and spent > privacy.max_epsilon:
            raise ConfigError(
                f"{self.schedule.rounds} rounds with privacy.noise={privacy.noise:g} would spend "
                f"epsilon={spent:.2f}, more than privacy.max_epsilon={privacy.max_epsilon:g}. "
                f"Give privacy.noise={needed:.4g} or more (or none at all), fewer rounds, or a larger budget."
            )
        return privacy.model_copy(update={"noise": noise, "head_noise": noise * ratio})

    def _ratio(self, privacy: DifferentialPrivacy) -> float:
        """Return the noise of what is sent before round 0, in noises of a round.

        Releases add up by ``1 / noise^2``. Of the sum for the client that is drawn most, the release before
        round 0 gets ``head_share`` and those of its visits get the rest.
        """
        if not releases_before(self.table):
            return 1.0
        if privacy.head_noise is not None:
            if privacy.noise is None:
                raise ConfigError(
                    "privacy.head_noise is given without privacy.noise. Give both, or privacy.head_share "
                    "instead."
                )
            return privacy.head_noise / privacy.noise
        visits = self._visits(self.fresh().ledger).most
        return math.sqrt((1 / privacy.head_share - 1) / visits) if visits else 1.0

    def _visits(self, ledger: Ledger) -> Ledger:
        """Add to a ledger all visits of the run."""
        for round_ in range(self.schedule.rounds):
            ledger.add(self.schedule.drawn(round_), releases_of_a_visit(self.table))
        return ledger


def _worth(privacy: DifferentialPrivacy) -> float:
    """Return what a client's release before round 0 costs, in releases of a round."""
    return (privacy.settled / privacy.before_rounds().settled) ** 2


def releases_before(table: TensorTable) -> int:
    """Return how often a client releases something before round 0."""
    return _releases(spec for spec in table if spec.replied)


def releases_of_a_visit(table: TensorTable) -> int:
    """Return how often a client releases something in a round."""
    return _releases(spec for spec in table if spec.returned)


def _releases(sent: Iterable[TensorSpec]) -> int:
    """Count the releases of a message: all its changes are one, and all its statistics are one."""
    kinds = {spec.kind for spec in sent}
    return int(not kinds.isdisjoint(STATISTICS)) + int(not kinds.isdisjoint(CHANGES))


def _check_delta(delta: float, records: int) -> None:
    if delta * records >= 1:
        raise ConfigError(
            f"privacy.delta={delta:g} would allow to publish one of the {records} training records as it "
            f"is. Give less than {1 / records:.1g}."
        )
