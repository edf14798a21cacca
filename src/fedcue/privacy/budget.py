"""The privacy budget of a run: settled before it starts, spent round by round, never exceeded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedcue.errors import BudgetSpent, ConfigError
from fedcue.privacy.accounting import Ledger
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.mechanisms import PaperNoise, Privacy
from fedcue.types import TensorTable

AGAINST = {
    "central": "everyone who sees what the server sends or publishes; the server itself is trusted",
    "local": "everyone, a server that follows the protocol included",
    "distributed": "everyone, a server that follows the protocol included, as long as it knows the noise of "
    "no more than privacy.colluding clients of a round",
    "secret": "; and only as long as nobody but the server knows who took part (not other clients either)",
}
NOT_COVERED = (
    "test images, and how many of them each client reports as right in a deployment; choices made by "
    "looking at results; that a client failed; who knows or guesses the seed of a simulation; "
    "what a simulation writes down beside the model: class priors in model.json, counts in "
    "analysis.safetensors, clients' own tensors, accuracies, the seed in config.toml"
)


UNITS = {"image": "one training record", "client": "one client with all its training records"}
"""What a neighbouring federation has another of, by ``privacy.unit``."""

SIMULATED = "simulated noise: who knows the seed can compute it again"
FRESH = "keys of 256 bits of the operating system, at each client or at the server"


class Schedule(Protocol):
    """Who is asked when: the streams of clients drawn, which depend on the seed alone."""

    @property
    def rounds(self) -> int:
        """Number of rounds."""

    @property
    def clients(self) -> int:
        """Number of clients that may be drawn."""

    @property
    def per_round(self) -> int:
        """Number of clients drawn in a round."""

    def first(self) -> list[int]:
        """Return the clients that are asked before round 0."""

    def drawn(self, finished_rounds: int, attempt: int = 0) -> list[int]:
        """Return the clients of a round."""


@dataclass
class Budget:
    """What has been spent; for a run without differential privacy there is nothing to spend."""

    privacy: Privacy
    table: TensorTable
    schedule: Schedule
    ledger: Ledger
    simulated: bool = True
    """Whether the noise follows from the seed of a simulation."""
    journal: Callable[[Sequence[int], int], None] | None = None
    """Told who is about to release how often, where a release cannot be repeated bit for bit."""

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

    def warm_up(self) -> None:
        """Count the releases of the warm start."""
        releases = releases_before(self.privacy, self.table)
        if releases:
            self._release(self.schedule.first(), releases, "The warm start")

    def visit(self, clients: Iterable[int], round_: int) -> None:
        """Count the releases of a round that is about to start, unless the budget does not allow it."""
        self._release(list(clients), releases_of_a_visit(self.table), f"Round {round_ + 1}")

    def _release(self, clients: Sequence[int], releases: int, when: str) -> None:
        privacy, after = self.privacy, self.ledger.after(clients, releases)
        if isinstance(privacy, DifferentialPrivacy) and privacy.noise is not None:
            epsilon = after.epsilon(privacy.noise, privacy.delta)
            if epsilon > privacy.max_epsilon:
                raise BudgetSpent(
                    f"{when} would spend epsilon={epsilon:.3f}, more than privacy.max_epsilon="
                    f"{privacy.max_epsilon:g} (what is done again is spent twice). Give fewer rounds, more "
                    "privacy.noise or a larger budget to a new run."
                )
            if self.journal is not None:
                self.journal(clients, releases)
        self.ledger = after

    def recount(self, journal: Iterable[tuple[Sequence[int], int]]) -> None:
        """Count again what a run's journal says was released."""
        for clients, releases in journal:
            self.ledger.add(clients, releases)

    def replay(self, records: Iterable[Mapping[str, Any]], attempts: int) -> None:
        """Count again what a run that is resumed has spent, rounds drawn again included."""
        self.warm_up()
        for record in records:
            for attempt in range(attempts):
                drawn = self.schedule.drawn(record["round"] - 1, attempt)
                self.visit(drawn, record["round"] - 1)
                if drawn == record["clients"]:
                    break

    @property
    def epsilon(self) -> float:
        """What has been spent so far (0 without differential privacy)."""
        privacy = self.privacy
        if not isinstance(privacy, DifferentialPrivacy) or privacy.noise is None:
            return 0.0
        return self.ledger.epsilon(privacy.noise, privacy.delta)

    @property
    def released(self) -> int:
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
        against = AGAINST[privacy.where]
        if privacy.secret_sample:
            against += AGAINST["secret"]
        return {
            "privacy": {
                "name": "dp",
                "epsilon": self.epsilon,
                "delta": privacy.delta,
                "epsilon_by_renyi": self.ledger.renyi(privacy.noise or 1.0, privacy.delta),
                "unit": UNITS[privacy.unit],
                "neighbours": "replace-one",
                "where": privacy.where,
                "sample": privacy.sample,
                "noise_multiplier": privacy.noise,
                "clip": privacy.clip,
                "releases_of_one_client": self.ledger.most,
                "noise": SIMULATED if self.simulated else FRESH,
                "accountant": self.ledger.accountant,
                "against": against,
                "not_covered": NOT_COVERED,
            }
        }

    def _settled(self, privacy: DifferentialPrivacy) -> DifferentialPrivacy:
        """Return the options with the noise they leave open; all rounds of the run must fit."""
        plan = self._plan()
        needed = plan.noise_for(privacy.max_epsilon, privacy.delta) if plan.most else 1.0
        if privacy.noise is None:
            return privacy.model_copy(update={"noise": needed})
        spent = plan.epsilon(privacy.noise, privacy.delta)
        if spent > privacy.max_epsilon:
            raise ConfigError(
                f"{self.schedule.rounds} rounds with privacy.noise={privacy.noise:g} would spend "
                f"epsilon={spent:.2f}, more than privacy.max_epsilon={privacy.max_epsilon:g}. "
                f"Give privacy.noise={needed:.4g} or more (or none at all), fewer rounds, or a larger budget."
            )
        return privacy

    def _plan(self) -> Ledger:
        """Return the ledger as it will be after the last round, if no round is drawn again."""
        ahead = self.fresh()
        if isinstance(ahead.privacy, DifferentialPrivacy):
            ahead.privacy = ahead.privacy.model_copy(update={"noise": None})  # nothing is refused on the way
        ahead.warm_up()
        for round_ in range(self.schedule.rounds):
            ahead.visit(self.schedule.drawn(round_), round_)
        return ahead.ledger


def releases_before(privacy: Privacy, table: TensorTable) -> int:
    """Return how often a client releases something before round 0.

    Class sums and counts are one release. Second moments are another, unless a client's whole reply has a
    bound of its own.
    """
    kinds = {spec.kind for spec in table if spec.replied}
    if not kinds & {"class_sums", "moments"}:
        return 0
    apart = isinstance(privacy, DifferentialPrivacy) and privacy.unit == "image"
    return 1 + int("moments" in kinds and apart)


def releases_of_a_visit(table: TensorTable) -> int:
    """Return how often a client releases something in a round: its changes and, if it has any, class sums."""
    return 1 + int(any(spec.returned and spec.kind == "class_sums" for spec in table))


def _check_delta(delta: float, records: int) -> None:
    if delta * records >= 1:
        raise ConfigError(
            f"privacy.delta={delta:g} would allow to publish one of the {records} training records as it "
            f"is. Give less than {1 / records:.1g}."
        )
