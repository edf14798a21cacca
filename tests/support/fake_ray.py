"""A stand-in for the parts of Ray that the pool of workers uses: nodes, actors, answers, deaths."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fedcue.rounds.on_ray.worker import Arrival


class Died(Exception):  # noqa: N818
    """A worker is gone."""


class Bug(Exception):  # noqa: N818
    """Something raised in a worker."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"traceback of {cause!r}")
        self.cause = cause


class Answer:
    """What an actor will say; nothing before it has a place."""

    def __init__(self, actor: Actor, work: Callable[[], Any]) -> None:
        self.actor, self.work = actor, work


class Actor:
    """A worker that takes one slot of the cluster, if there is one."""

    def __init__(self, ray: FakeRay) -> None:
        self.ray, self.alive, self.node, self.stands_still = ray, True, None, False
        self.prepare = SimpleNamespace(remote=lambda *_: Answer(self, lambda: Arrival(0, 0.0, 0.0)))
        self.visit = SimpleNamespace(
            remote=lambda step, job: Answer(self, lambda: (ray.behaviour(self, step, job), 0.5))
        )

    def find_place(self) -> bool:
        taken = [actor.node for actor in self.ray.actors if actor.alive]
        for node, slots in self.ray.slots.items():
            if self.node is None and taken.count(node) < slots:
                self.node = node
        return self.node is not None


class FakeRay:
    """A cluster with so many slots on each node; ``behaviour`` says what a visit comes to."""

    exceptions = SimpleNamespace(
        RayActorError=Died, NodeDiedError=Died, ObjectLostError=Died, OutOfMemoryError=Died,
        RayTaskError=Bug, RayError=Exception,
    )  # fmt: skip

    def __init__(self, slots: dict[str, int], behaviour: Callable[[Actor, str, Any], Any]) -> None:
        self.slots, self.behaviour, self.actors = slots, behaviour, list[Actor]()
        self.random = random.Random(0)

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": True, "Resources": {"CPU": float(n)}} for name, n in self.slots.items()
        ]

    def remote(self, kind: type) -> Any:
        def begin() -> Actor:
            self.actors.append(Actor(self))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=begin))

    def wait(
        self, answers: list[Answer], num_returns: int, timeout: float
    ) -> tuple[list[Answer], list[Answer]]:
        moving = [one for one in answers if not one.actor.stands_still]
        there = [one for one in moving if not one.actor.alive or one.actor.find_place()]
        self.random.shuffle(there)  # order must come from the pool
        return there[:num_returns], []

    def get(self, answer: Answer) -> Any:
        try:
            if answer.actor.alive and answer.actor.node in self.slots:
                return answer.work()
        except (Died, Bug):
            raise
        except Exception as error:
            raise Bug(error) from error
        answer.actor.alive = False
        raise Died("the actor died")

    def kill(self, actor: Actor) -> None:
        actor.alive = False
