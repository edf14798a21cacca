"""Who takes part in a run: everybody who is there when it starts, and who joins it later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedcue.clients.roster import Roster
from fedcue.config.settings import RunConfig
from fedcue.errors import ClientError, FedcueError
from fedcue.flower.messages import Member
from fedcue.flower.register import Register
from fedcue.model.vit import Architecture
from fedcue.privacy.accounting import Ledger
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.mechanisms import Privacy
from fedcue.privacy.stream import NoiseStream


@dataclass
class Enrolment:
    """The clients of a run, of whom some may be missing."""

    register: Register
    clients: int
    needed: int
    """How many must be there when the run starts or goes on."""
    released: Mapping[int, float] | None = None
    """What the run's journal says was released, by client; none if the run has not begun."""
    left_out: dict[int, str] = field(default_factory=dict)
    """Clients that were there and cannot take part, and why."""
    roster: Roster | None = None

    def begin(self, config: RunConfig, classes: tuple[str, ...], shape: Architecture) -> Roster:
        """Return the roster of all who have joined; those whose images have no budget left are left out."""
        while True:
            if len(self.register.members) < self.needed:
                reasons = " ".join(f"Client {client}: {why}." for client, why in self.left_out.items())
                raise FedcueError(
                    f"Fewer than {self.needed} clients can take part. {reasons} Give fewer rounds, more "
                    "noise or a larger budget, or min_clients=N to start with N of them."
                )
            over = self._overclaimed(config.privacy)
            if not over:
                self.roster = roster = self._roster(config, classes, shape)
                over = self._overdrawn(roster)
                if not over:
                    return roster
            self.left_out |= over
            for client in over:
                self.register.leave_out(client, forget=self.released is None)

    def admit(self, node: int, key: str, members: Sequence[Member], present: Mapping[int, str]) -> None:
        """Let a node's clients take part, from the next round on if the run has begun."""
        late = [member for member in members if member.id not in self.register.members]
        roster = self.roster
        if roster is not None:
            for member in late:
                _check_late(roster, member)
        self.register.place(node, key, members, present)
        if roster is not None and late:
            _add(roster, late)

    def earlier(self) -> dict[int, float]:
        """Return what clients released in earlier runs, in releases of this run's noise."""
        assert self.roster is not None
        privacy = self.roster.budget.privacy
        if not isinstance(privacy, DifferentialPrivacy) or privacy.noise is None:
            return {}
        spent = {client: value for client, value in self.register.spent.items() if value}
        return {client: value * privacy.noise**2 for client, value in spent.items()}

    def _overclaimed(self, privacy: Privacy) -> dict[int, str]:
        """Return a client to leave out if they claim more images than delta allows: the one with most."""
        sizes = {c: m.train_size for c, m in self.register.members.items() if not m.heldout}
        records = sum(sizes.values())
        if not isinstance(privacy, DifferentialPrivacy) or privacy.delta * records < 1:
            return {}
        most = max(sizes, key=lambda client: (sizes[client], client))
        why = f"privacy.delta={privacy.delta:g} is too large for {records} images, {sizes[most]} of them"
        return {most: f"{why} its own: give less than {1 / records:.1g}"}

    def _overdrawn(self, roster: Roster) -> dict[int, str]:
        """Return the clients whose images released more, in other runs, than this one can count with."""
        privacy, earlier = roster.budget.privacy, self.earlier()
        if not earlier or not isinstance(privacy, DifferentialPrivacy) or privacy.noise is None:
            return {}
        if self.released is not None:
            words = "its images were released in another run since this one began"
            before = self.released
            return {
                c: words
                for c, count in earlier.items()
                if count > before.get(c, 0) + 1e-6 and c in self.register.places
            }
        plan, over = roster.budget.plan().releases, {}
        for client in earlier.keys() & self.register.members.keys():
            ledger = Ledger(releases={0: earlier[client] + plan.get(client, 0)})
            epsilon = ledger.epsilon(privacy.noise, privacy.delta)
            if epsilon > privacy.max_epsilon:
                over[client] = (
                    f"with its releases in earlier runs this one would spend epsilon={epsilon:.3f}, more "
                    f"than privacy.max_epsilon={privacy.max_epsilon:g}"
                )
        return over

    def _roster(self, config: RunConfig, classes: tuple[str, ...], shape: Architecture) -> Roster:
        """Return a roster in which those who have not joined are held out under no name."""
        members = self.register.members
        some = next(iter(members.values()))
        everyone = [
            members.get(client, Member(client, "(not joined)", some.domain, True, 0, 0))
            for client in range(self.clients)
        ]
        return Roster(
            config,
            config.data.name,
            classes,
            shape,
            names=[member.name for member in everyone],
            domains=[member.domain for member in everyone],
            heldout=np.array([member.heldout for member in everyone]),
            train_sizes=np.array([member.train_size for member in everyone]),
            test_sizes=np.array([member.test_size for member in everyone]),
            stream=NoiseStream.secret,
        )


def _check_late(roster: Roster, member: Member) -> None:
    """Refuse a client that would change what was settled when the run started."""
    if member.domain not in roster.domains:
        raise ClientError(f"its client {member.id} has a domain that the run was not started with")
    privacy = roster.budget.privacy
    if not isinstance(privacy, DifferentialPrivacy) or member.heldout:
        return
    if member.spent:
        raise ClientError(
            f"its client {member.id} released something in earlier runs: with privacy=dp it must be there at "
            "the start"
        )
    records = int(roster.train_sizes.sum()) + member.train_size
    if privacy.delta * records >= 1:
        raise ClientError(f"privacy.delta={privacy.delta:g} is too large for {records} images with its own")


def _add(roster: Roster, members: Sequence[Member]) -> None:
    """Enter clients that joined late; they are drawn from the next round on."""
    names = list(roster.names)
    for member in members:
        names[member.id] = member.name
        roster.heldout[member.id] = member.heldout
        roster.train_sizes[member.id], roster.test_sizes[member.id] = member.train_size, member.test_size
    roster.names = names
    roster.domains = [
        next((m.domain for m in members if m.id == client), domain)
        for client, domain in enumerate(roster.domains)
    ]
    roster.training_clients = np.flatnonzero(~roster.heldout)
    roster.schedule = replace(roster.schedule, training=roster.training_clients)
