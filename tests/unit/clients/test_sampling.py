"""Who is drawn: distinct clients that train, another sample every round, by the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
from support.tables import roster_with

from fedcue.privacy.budget import Schedule

TRAINING = np.array([0, 2, 3, 5, 7, 8, 11])


def schedule(seed: int = 0, per_round: int = 4, warm_start: int | str = "all") -> Schedule:
    return Schedule(TRAINING, per_round, 50, warm_start, seed)  # type: ignore[arg-type]


def test_a_round_draws_distinct_clients_of_those_that_train() -> None:
    for number in range(50):
        drawn = schedule().drawn(number)
        assert len(set(drawn)) == 4
        assert set(drawn) <= set(TRAINING.tolist())


def test_all_clients_are_drawn_when_all_are_asked_for() -> None:
    assert sorted(schedule(per_round=7).drawn(3)) == TRAINING.tolist()


def test_rounds_attempts_and_seeds_draw_differently_and_repeatably() -> None:
    samples = [schedule().drawn(number) for number in range(20)]
    assert len({tuple(sample) for sample in samples}) > 10
    assert samples == [schedule().drawn(number) for number in range(20)]
    assert [schedule(seed=1).drawn(number) for number in range(20)] != samples
    assert [schedule().drawn(number, 1) for number in range(20)] != samples


def test_every_client_that_trains_is_drawn_about_equally_often() -> None:
    drawn = [client for number in range(700) for client in schedule().drawn(number)]
    counts = np.array([drawn.count(client) for client in TRAINING])
    assert (abs(counts - 400) < 60).all()  # four of seven, 700 times; the deviation is 13


def test_before_round_0_all_that_train_are_asked_or_a_seeded_sample() -> None:
    assert schedule().first() == TRAINING.tolist()
    assert schedule(warm_start=100).first() == TRAINING.tolist()
    some = schedule(warm_start=3).first()
    assert some == sorted(set(some))
    assert len(some) == 3
    assert set(some) <= set(TRAINING.tolist())
    assert len({tuple(schedule(seed, warm_start=3).first()) for seed in range(10)}) > 3
    asked = {start: schedule(warm_start=start).asked_first for start in ("all", 100, 7, 3)}
    assert asked == {"all": 7, 100: 7, 7: 7, 3: 3}


@pytest.mark.parametrize("method", ["fedvpt", "pep"])
def test_held_out_clients_are_in_no_draw_of_a_roster(method: str) -> None:
    roster = roster_with(f"method={method}", "clients_per_round=4")
    held = set(np.flatnonzero(roster.heldout).tolist())
    assert held == {18, 19}
    assert not held & set(roster.schedule.first())
    assert not held & {client for number in range(200) for client in roster.schedule.drawn(number)}


def test_who_is_drawn_asked_first_and_tested_follows_from_the_runs_seed() -> None:
    settings = ("clients_per_round=4", "warm_start=6", "evaluation.clients=7")
    rosters = [roster_with("method=pep", f"seed={seed}", *settings) for seed in range(4)]
    for draw in (lambda r: r.schedule.drawn(3), lambda r: r.schedule.first(), lambda r: r.listed.tolist()):
        assert len({tuple(draw(roster)) for roster in rosters}) == 4
    assert [roster.schedule.seed for roster in rosters] == [0, 1, 2, 3]


def test_who_is_drawn_stays_what_it_is() -> None:
    """The same seed draws the same clients in every version: a run can be repeated."""
    assert [schedule().drawn(number) for number in range(3)] == [[2, 5, 11, 8], [2, 8, 7, 5], [8, 2, 7, 3]]
    assert schedule().drawn(0, 1) == [11, 7, 5, 8]
    assert schedule(warm_start=3).first() == [3, 5, 11]
    some = roster_with("method=fedvpt", "clients_per_round=4", "evaluation.clients=7")
    assert some.listed.tolist() == [1, 2, 7, 13, 14, 17, 19]
