"""No visit is lost with a worker: each is done by one that is there, and results come in order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.fake_ray import Actor, Died, FakeRay

from fedcue.errors import ConfigError, Interrupted, WorkersLost
from fedcue.rounds.on_ray import pool as pools
from fedcue.rounds.on_ray.cluster import Cluster
from fedcue.rounds.on_ray.pool import AHEAD, MOST_LOSSES, Pool, Visit
from fedcue.rounds.simulator import STEPS, Simulator
from fedcue.types import ClientMemory, Download


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "LOOK", 0.0)
    monkeypatch.setattr(pools, "POLL", 0.0)


def echo(actor: Actor, step: str, job: tuple[Any, ...]) -> Any:
    return step, job


def made(ray: FakeRay, most: int = 0, timeout: float = 600.0, check: Any = lambda: None) -> Pool:
    return Pool(Cluster(ray, "127.0.0.1:1", 1, 0), None, most, timeout, check)


def jobs(count: int) -> list[tuple[list[int]]]:
    return [([client],) for client in range(count)]


@pytest.mark.parametrize(
    ("step", "together", "first"),
    [("warm_up", 1, [7, 3, 5]), ("train", 1, [7, 3, 5]), ("train", 2, [7, 5]), ("test", 1, [7, 3, 5])],
)
def test_a_visit_knows_its_client_whatever_its_step(step: str, together: int, first: list[int]) -> None:
    """Jobs are those that a simulator makes, as it hands them to its workers."""

    class Noting(Simulator):
        def _outcomes(self, asked: Any, jobs: Any) -> Any:
            assert asked is STEPS[step]
            seen.extend(Visit(number, step, job).client for number, job in enumerate(jobs))
            return iter(())

    seen: list[int] = []
    simulator = object.__new__(Noting)
    simulator.together = together
    downloads = [(Download(client, 0, {}), ClientMemory()) for client in (7, 3, 5)]
    if step == "warm_up":
        list(simulator.warm_up([7, 3, 5]))
    elif step == "test":
        list(simulator.test([([sent.client, 1], sent, memory, True) for sent, memory in downloads]))
    else:
        list(simulator.train(downloads))
    assert seen == first


def test_results_come_in_the_order_of_the_jobs_and_all_nodes_work() -> None:
    by_node: Counter[str] = Counter()

    def counted(actor: Actor, step: str, job: tuple[Any, ...]) -> Any:
        by_node[actor.node] += 1
        return job[0][0]

    pool = made(FakeRay({"a": 1, "b": 2}, counted))
    assert list(pool.map("train", jobs(20))) == list(range(20))
    assert set(by_node) == {"a", "b"}
    assert len(pool.members) == 3
    assert pool.seconds == 20 * 0.5


def test_only_a_few_jobs_are_made_ahead() -> None:
    pool, made_so_far = made(FakeRay({"a": 2}, echo)), []
    outcomes = pool.map("train", (made_so_far.append(job) or job for job in jobs(100)))
    next(outcomes)
    assert len(made_so_far) <= AHEAD * 2 + 1


def test_a_visit_lost_with_its_worker_is_done_by_another() -> None:
    lost: list[int] = []

    def mortal(actor: Actor, step: str, job: tuple[Any, ...]) -> Any:
        if job[0][0] % 3 == 1 and job[0][0] not in lost:
            lost.append(job[0][0])
            raise Died("killed")
        return job[0][0]

    ray = FakeRay({"a": 1, "b": 1}, mortal)
    assert list(made(ray).map("train", jobs(9))) == list(range(9))
    assert sorted(lost) == [1, 4, 7]
    assert len(ray.actors) == 5  # each that died was replaced


def test_a_visit_moves_to_another_node_when_its_own_is_gone_and_nobody_waits_for_a_place_there() -> None:
    ray = FakeRay({"a": 1, "b": 1}, echo)

    def dying(actor: Actor, step: str, job: tuple[Any, ...]) -> Any:
        if job[0][0] == 3 and len(ray.slots) == 2:
            del ray.slots[actor.node]
            raise Died("node died")
        return job[0][0]

    ray.behaviour = dying
    pool = made(ray)
    assert list(pool.map("train", jobs(8))) == list(range(8))
    assert len(ray.slots) == 1
    assert len(pool.members) == 1


def test_a_node_that_joins_is_used() -> None:
    ray = FakeRay({"a": 1}, lambda actor, step, job: actor.node)
    pool = made(ray)
    assert set(pool.map("train", jobs(4))) == {"a"}
    ray.slots["b"] = 1
    assert set(pool.map("train", jobs(12))) == {"a", "b"}


def test_a_worker_without_a_place_is_given_nothing() -> None:
    ray = FakeRay({"a": 2}, echo)
    stranger = Actor(ray)
    ray.actors.append(stranger)
    assert stranger.find_place()  # of another run: one place is left
    assert list(made(ray).map("train", jobs(5))) == [("train", job) for job in jobs(5)]


def test_a_client_goes_where_its_frozen_values_are() -> None:
    places: dict[int, set[int]] = {}

    def noted(actor: Actor, step: str, job: tuple[Any, ...]) -> Any:
        places.setdefault(job[0][0], set()).add(id(actor))

    pool = made(FakeRay({"a": 2}, noted))
    list(pool.map("train", jobs(20)))
    places.clear()
    for _ in range(5):
        list(pool.map("train", jobs(2)))
    assert [len(seen) for seen in places.values()] == [1, 1]


def test_no_more_workers_than_asked_for() -> None:
    pool = made(FakeRay({"a": 8}, echo), most=2)
    list(pool.map("train", jobs(5)))
    assert len(pool.members) == 2


def test_with_nobody_left_the_run_waits_and_then_says_what_to_do() -> None:
    pool = made(FakeRay({}, echo), timeout=0.01)
    with pytest.raises(WorkersLost, match=r"engine.timeout=0.01 s: no node has room.*ray start --address"):
        list(pool.map("train", jobs(1)))


def test_a_visit_that_kills_every_worker_ends_the_run() -> None:
    def deadly(actor: Actor, step: str, job: tuple[Any, ...]) -> Any:
        raise Died("out of memory")

    ray = FakeRay({"a": 1}, deadly)
    with pytest.raises(
        WorkersLost, match=rf"client 0 lost {MOST_LOSSES} workers.*out of memory.*fewer workers"
    ):
        list(made(ray).map("train", jobs(3)))
    assert len(ray.actors) == MOST_LOSSES


def test_a_worker_that_stands_still_is_replaced_after_the_clients_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "GRACE", 0.0)
    ray = FakeRay({"a": 1}, echo)
    pool = made(ray)
    list(pool.map("train", jobs(1)))
    pool.client_timeout = 0.01
    ray.actors[0].stands_still = True
    assert list(pool.map("train", jobs(3))) == [("train", job) for job in jobs(3)]
    assert [actor.alive for actor in ray.actors] == [False, True]
    assert pool.last_loss == "it did not come back after 0.01 s"


def test_a_bug_is_raised_at_once_and_a_users_mistake_as_what_it_is() -> None:
    asked: list[int] = []

    def wrong(actor: Actor, step: str, job: tuple[Any, ...]) -> Any:
        asked.append(job[0][0])
        raise errors[0]

    errors: list[Exception] = [ZeroDivisionError("here")]
    with pytest.raises(FakeRay.exceptions.RayTaskError, match="traceback of ZeroDivisionError"):
        list(made(FakeRay({"a": 1}, wrong)).map("train", jobs(1)))
    assert asked == [0]
    errors[0] = ConfigError("no such device")
    with pytest.raises(ConfigError, match="no such device"):
        list(made(FakeRay({"a": 1}, wrong)).map("train", jobs(1)))


def test_a_signal_stops_the_waiting() -> None:
    def stopped() -> None:
        raise Interrupted(15)

    with pytest.raises(Interrupted):
        list(made(FakeRay({}, echo), check=stopped).map("train", jobs(1)))


def test_answers_of_a_round_that_was_given_up_are_not_taken_for_the_next() -> None:
    pool = made(FakeRay({"a": 2}, echo))
    begun = pool.map("train", jobs(6))
    next(begun)
    begun.close()
    assert list(pool.map("test", jobs(4))) == [("test", job) for job in jobs(4)]


def test_closing_ends_every_worker() -> None:
    ray = FakeRay({"a": 3}, echo)
    pool = made(ray)
    list(pool.map("train", jobs(3)))
    pool.close()
    assert not any(actor.alive for actor in ray.actors)
