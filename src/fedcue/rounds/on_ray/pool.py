"""Who does which visit: workers come and go, and no visit is lost with one.

A visit is handed to a worker that is there, never to one that has yet to find a place. What a client
does follows from what it is sent and from named streams, so a visit that was lost with its worker is
done again by another, with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fedcue.errors import FedcueError, WorkersLost
from fedcue.rounds.on_ray.cluster import Cluster
from fedcue.rounds.on_ray.worker import Arrival, Worker
from fedcue.rounds.simulator import Job

POLL = 0.2
"""Seconds between two looks at what else happened: a signal, a node that came or went."""

LOOK = 1.0
"""Seconds between two looks at the cluster."""

AHEAD = 3
"""Visits per worker that are prepared and not yet taken, so that no worker waits."""

GRACE = 10.0
"""Seconds that a worker has to end a visit by itself, after ``client_timeout``."""

MOST_LOSSES = 5
"""A visit that lost so many workers is what kills them."""


@dataclass(eq=False)
class Visit:
    """A step of a client, and how often it was lost."""

    number: int
    step: str
    job: Job
    losses: int = 0

    @property
    def client(self) -> int:
        """The client it is about, or the first of several."""
        return int(self.job[0][0])


@dataclass(eq=False)
class Member:
    """A worker and its task: its preparation, a visit, or a visit whose result is no longer wanted."""

    actor: Any
    answer: Any
    arrival: Arrival | None = None
    visit: Visit | None = None
    since: float = 0.0
    """When it was given its visit."""

    @property
    def idle(self) -> bool:
        """Whether it can be given a visit."""
        return self.arrival is not None and self.answer is None


@dataclass(eq=False)
class Pool:
    """The workers of one run; ``most`` is how many there may be (0: as many as have room)."""

    cluster: Cluster
    parcel: Any
    most: int
    timeout: float
    check: Callable[[], None]
    """Called while waiting; raises when the user stopped the run."""
    client_timeout: float | None = None
    """Seconds that a visit may take; a worker that does not come back then is taken for lost."""
    members: list[Member] = field(default_factory=list)
    last_visited: dict[int, Member] = field(default_factory=dict)
    """Who has a client's frozen values already."""
    arrived: list[Arrival] = field(default_factory=list)
    seconds: float = 0.0
    """Time that workers spent on visits."""
    last_loss: str = ""

    def __post_init__(self) -> None:
        self._looked, self._served = -LOOK, time.monotonic()
        exceptions = self.cluster.ray.exceptions
        self._lost = (
            exceptions.RayActorError,
            exceptions.NodeDiedError,
            exceptions.ObjectLostError,
            exceptions.OutOfMemoryError,
        )

    @property
    def ready(self) -> int:
        """How many workers can do visits."""
        return sum(member.arrival is not None for member in self.members)

    def map(self, step: str, jobs: Iterable[Job]) -> Iterator[Any]:
        """Yield what came of each visit, in the order of ``jobs``, of which only a few wait at a time."""
        coming = iter(jobs)
        waiting: list[Visit] = []
        done: dict[int, Any] = {}
        made = taken = 0
        try:
            while True:
                room = AHEAD * max(1, len(self.members)) - (made - taken)
                for job in islice(coming, max(0, room)):
                    waiting.append(Visit(made, step, job))
                    made += 1
                if made == taken:
                    return
                self._look()
                self._hand_out(waiting)
                for visit, outcome in self._answers(waiting):
                    done[visit.number] = outcome
                while taken in done:
                    yield done.pop(taken)
                    taken += 1
        finally:
            for member in self.members:
                member.visit = None

    def close(self) -> None:
        """End all workers."""
        while self.members:
            self._dismiss(self.members[-1])

    def _look(self) -> None:
        """Start workers where there is room; give up when there has been none for too long."""
        self.check()
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        room = sum(self.cluster.room().values())
        wanted = min(self.most or room, room)
        for member in [one for one in self.members if one.arrival is None][: len(self.members) - wanted]:
            self._dismiss(member)  # it waits for a place that is gone
        while len(self.members) < wanted:
            self._begin()
        if self.ready:
            self._served = now
        elif now - self._served > self.timeout:
            raise WorkersLost(self._nobody(room))

    def _begin(self) -> None:
        options = {"num_cpus": self.cluster.cpus, "num_gpus": self.cluster.gpus}
        place = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        actor = self.cluster.ray.remote(Worker).options(**options, **place).remote()
        threads = max(1, int(self.cluster.cpus))
        self.members.append(Member(actor, actor.prepare.remote(self.parcel, threads)))

    def _hand_out(self, waiting: list[Visit]) -> None:
        """Give every idle worker a visit: if possible of a client whose frozen values it has."""
        for own_only in (True, False):
            for member in self.members:
                found = [v for v in waiting if not own_only or self.last_visited.get(v.client) is member]
                if member.idle and found:
                    waiting.remove(found[0])
                    self._give(member, found[0])

    def _give(self, member: Member, visit: Visit) -> None:
        member.visit, self.last_visited[visit.client] = visit, member
        member.since = time.monotonic()
        member.answer = member.actor.visit.remote(visit.step, visit.job)

    def _answers(self, waiting: list[Visit]) -> Iterator[tuple[Visit, Any]]:
        """Wait a moment for answers; a visit that was lost goes to the front of those waiting."""
        self._lose_late(waiting)
        busy = {member.answer: member for member in self.members if member.answer is not None}
        if not busy:
            time.sleep(POLL)
            return
        for answer in self.cluster.ray.wait(list(busy), num_returns=1, timeout=POLL)[0]:
            member = busy[answer]
            try:
                found = self._received(answer)
            except self._lost as error:
                self._lose(member, waiting, str(error))
                continue
            visit, member.answer, member.visit = member.visit, None, None
            if isinstance(found, Arrival):
                member.arrival = found
                self.arrived.append(found)
            else:
                outcome, seconds = found
                self.seconds += seconds
                if visit is not None:
                    yield visit, outcome

    def _lose_late(self, waiting: list[Visit]) -> None:
        """Take workers for lost that stand still: stopped, swapped out, or waiting for a disk."""
        if self.client_timeout is not None:
            latest = time.monotonic() - self.client_timeout - GRACE
            for member in [one for one in self.members if one.visit is not None and one.since < latest]:
                self._lose(member, waiting, f"it did not come back after {self.client_timeout:g} s")

    def _received(self, answer: Any) -> Any:
        """Return an answer; a mistake of the user's is raised as it was there, a bug with its traceback."""
        try:
            return self.cluster.ray.get(answer)
        except self.cluster.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, FedcueError):
                raise error.cause from None
            raise

    def _lose(self, member: Member, waiting: list[Visit], reason: str) -> None:
        self.last_loss = reason.strip().splitlines()[0][:200] if reason.strip() else ""
        self._dismiss(member)
        visit = member.visit
        if visit is None:
            return
        visit.losses += 1
        if visit.losses >= MOST_LOSSES:
            raise WorkersLost(
                f"The visit of client {visit.client} lost {visit.losses} workers, one after the other "
                f"({self.last_loss}). Perhaps it needs more memory: give fewer workers=N, more "
                "engine.cpus_per_worker or a smaller training.batch_size."
            )
        waiting.insert(0, visit)

    def _dismiss(self, member: Member) -> None:
        self.members.remove(member)
        self.last_visited = {c: one for c, one in self.last_visited.items() if one is not member}
        with suppress(self.cluster.ray.exceptions.RayError):
            self.cluster.ray.kill(member.actor)

    def _nobody(self, room: int) -> str:
        last = f" The last one ended so: {self.last_loss}." if self.last_loss else ""
        taken = f"there is room for {room}, taken by others or too slow to start"
        where = taken if room else "no node has room"
        return (
            f"No worker was there for engine.timeout={self.timeout:g} s: {where} (a worker takes "
            f"{self.cluster.cpus:g} cores and {self.cluster.gpus:g} GPUs).{last} Start nodes with ray start "
            f"--address={self.cluster.address}, or ask for less with engine.cpus_per_worker."
        )
