"""What a server knows of its clients, and what follows from it."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import pytest
from support.tables import roster_of, roster_with

from fedcue.clients.roster import Roster
from fedcue.config.layers import load
from fedcue.errors import ConfigError
from fedcue.privacy.stream import NoiseStream
from fedcue.secure.refusals import SecureSumError
from fedcue.types import Sizes

KRUM = ("aggregate=krum", "aggregate.attackers=1", "clients_per_round=6")


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        (("clients_per_round=5", "min_updates=3"), 3),
        (KRUM, 5),  # 2 * attackers + 3, whatever was asked for
        ((*KRUM, "min_updates=6"), 6),
        (("method=central", "min_updates=3"), 1),  # one client holds all images
    ],
)
def test_a_round_needs_what_was_asked_for_and_what_its_rule_needs(
    settings: tuple[str, ...], needed: int
) -> None:
    assert roster_with(*settings).needed_updates == needed


def test_a_roster_knows_who_trains_what_they_hold_and_how_many_domains_there_are() -> None:
    plain = roster_with("method=fedvpt", "clients_per_round=4")
    assert (len(plain), plain.training_clients.tolist(), plain.sizes.domains) == (20, list(range(18)), 1)
    assert (plain.partition, plain.dropped) == (plain.config.partition.name, 0)
    told = roster(plain, partition="natural", dropped=3, domains=["a", "b"] * 10)
    assert (told.partition, told.dropped, told.sizes.domains, told.sizes.clients) == ("natural", 3, 2, 20)


def roster(like: Roster, **changed: Any) -> Roster:
    """Return the roster of the same run with something else told."""
    kept = ("names", "domains", "heldout", "train_sizes", "test_sizes")
    told = {name: getattr(like, name) for name in kept} | changed
    return Roster(like.config, like.dataset, like.classes, like.architecture, **told)


def test_noise_that_is_not_simulated_cannot_be_repeated() -> None:
    plain = roster_with("method=fedvpt", "clients_per_round=4")
    assert (plain.repeats_noise, plain.budget.simulated) == (True, True)
    fresh = roster(plain, stream=NoiseStream.secret)
    assert (fresh.repeats_noise, fresh.budget.simulated) == (False, False)
    assert fresh.protection.stream == NoiseStream.secret


def test_protection_knows_how_many_are_asked_before_round_0_and_in_a_round() -> None:
    assert roster_with("method=pep", "clients_per_round=4").protection.asked == (18, 4)
    assert roster_with("method=pep", "clients_per_round=4", "warm_start=7").protection.asked == (7, 4)


def test_one_client_is_visited_where_images_are_pooled_and_all_drawn_ones_elsewhere() -> None:
    pooled, plain = roster_with("method=central"), roster_with("method=fedvpt", "clients_per_round=4")
    assert pooled.visited(3) == pooled.schedule.drawn(3)[:1]
    assert plain.visited(3, 1) == plain.schedule.drawn(3, 1) != plain.schedule.drawn(3)
    assert len(plain.visited(3)) == 4


@pytest.mark.parametrize("asked", ["all", 20, 100])
def test_all_clients_are_listed_if_as_many_are_asked_for_as_there_are(asked: int | str) -> None:
    made = roster_with("method=fedvpt", "clients_per_round=4", f"evaluation.clients={asked}")
    assert made.listed.tolist() == list(range(20))


def test_held_out_clients_are_tested_if_the_method_can_serve_them() -> None:
    served = {method: roster_with(f"method={method}", "clients_per_round=4") for method in ("pep", "local")}
    assert served["pep"].tested() == list(range(20))
    assert served["local"].tested() == list(range(18))


def test_a_sample_of_clients_is_tested_in_the_order_of_their_numbers() -> None:
    made = roster_with("method=local", "clients_per_round=4", "evaluation.clients=9")
    listed = made.listed.tolist()
    assert listed == sorted(set(listed))
    assert len(listed) == 9
    assert made.tested() == [client for client in listed if client < 18]


def test_no_more_clients_are_asked_than_train() -> None:
    assert roster_with("method=fedvpt", "clients_per_round=18").config.clients_per_round == 18
    with pytest.raises(ConfigError, match="only 18 of 20 clients train. Give at most 18"):
        roster_with("method=fedvpt", "clients_per_round=19")


def test_one_of_the_tested_clients_must_train() -> None:
    """Which one client is drawn follows from the seed: for some it is one of the two that are held out."""
    one, drawn = ("method=fedvpt", "clients_per_round=4", "evaluation.clients=1"), {}
    for seed in range(30):
        with suppress(ConfigError):
            drawn[seed] = roster_with(*one, f"seed={seed}").listed.tolist()[0]
    assert max(drawn.values()) < 18
    refused = [seed for seed in range(30) if seed not in drawn]
    assert 0 < len(refused) < 12
    with pytest.raises(ConfigError, match="drew held-out clients only"):
        roster_with(*one, f"seed={refused[0]}")
    both = roster_with("method=fedvpt", "clients_per_round=4", "evaluation.clients=19")
    assert both.heldout[both.listed].any(), "a sample with some of them is taken"


@pytest.mark.parametrize(
    ("method", "first", "refused"), [("pep", 4, True), ("pep", 5, False), ("fedvpt", 4, False)]
)
def test_a_rule_needs_enough_answers_before_round_0_if_there_are_any(method, first, refused) -> None:
    settings = (f"method={method}", "aggregate=median", "clients_per_round=6", f"warm_start={first}")
    with pytest.raises(ConfigError, match="Give warm_start=5 or more") if refused else nullcontext():
        roster_with(*settings)


@pytest.mark.parametrize(("method", "refused"), [("pep", True), ("fedvpt", False)])
def test_a_secure_sum_before_round_0_needs_two_clients_if_there_is_one(method, refused) -> None:
    settings = (f"method={method}", "aggregate=secure", "clients_per_round=6", "warm_start=1")
    with pytest.raises(ConfigError, match="warm_start=1. Give warm_start=2") if refused else nullcontext():
        roster_with(*settings)


@pytest.mark.parametrize("method", ["ppt", "pep", "pfedpg"])  # keeps tensors, asks before round 0, needs each
def test_images_are_not_pooled_for_a_method_that_knows_clients_apart(method: str) -> None:
    with pytest.raises(ConfigError, match=f"method={method} has no meaning"):
        roster_with(f"method={method}", "pooled=true")


@pytest.mark.parametrize(("asked", "refused"), [(511, False), (512, True)])
def test_shares_of_noise_without_room_in_a_sum_are_refused_before_the_run(asked: int, refused: bool) -> None:
    """Words of 53 bits leave room for 1,023 of them, of which noise has half."""
    settings = ("method=fedvpt", "aggregate=secure", "aggregate.limit=2097152", f"clients_per_round={asked}")
    told = "over 1024 clients may not fit"
    with pytest.raises(SecureSumError, match=told) if refused else nullcontext():
        roster_of(load("default", [*settings, "privacy=dp", "privacy.where=distributed"]), clients=520)


def test_a_method_that_does_not_fit_the_backbone_is_refused() -> None:
    with pytest.raises(ConfigError, match="layers"):
        roster_with("method=pep", "method.layers=[40]", "clients_per_round=4")


def test_what_a_run_is_asked_for_and_the_shape_of_its_model_are_passed_on() -> None:
    settings = ("clients_per_round=4", "rounds=7", "warm_start=6", "seed=5", "method.weighting=size")
    made = roster_with("method=fedvpt", *settings)
    assert made.sizes == Sizes(classes=10, width=32, depth=8, patch=4, clients=20, domains=1)
    schedule = made.schedule
    assert (schedule.per_round, schedule.rounds, schedule.warm_start, schedule.seed) == (4, 7, 6, 5)
    assert made.protection.summing.weighting == "size"
    assert made.protection.summing.table is made.table
    assert made.needed_updates == 1
