"""What goes together and what is refused, and a budget that is never exceeded."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import STATISTICS, combined, roster_of, roster_with, table_of

from fedcue.aggregate.mean import PlainAdding, Summing
from fedcue.config.layers import dump, load
from fedcue.errors import BudgetSpent, ConfigError, FedcueError
from fedcue.methods.tensors import reply, trained, zeros
from fedcue.privacy import accounting
from fedcue.privacy.accounting import Ledger
from fedcue.privacy.budget import Budget, releases_before, releases_of_a_visit
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.guard import Protection, check_protection, simulated_stream
from fedcue.privacy.stream import NoiseStream
from fedcue.types import TensorSpec, Update

TEN = "clients_per_round=10"


def config_of(*settings: str):
    return load("default", [TEN, *settings])


def roster(*settings: str):
    return roster_with(TEN, *settings)


def budget_of(*settings: str) -> Budget:
    pytest.importorskip("dp_accounting")
    return roster("privacy=dp", *settings).budget


def test_the_defaults_add_nothing():
    config = config_of()
    assert isinstance(roster().protection.adding({}, 0), PlainAdding)
    assert (dump(config)["aggregate"], dump(config)["privacy"]) == ({"name": "mean"}, {"name": "none"})


@pytest.mark.parametrize("method", ["head", "fedvpt", "fedvpt_deep", "fedpr", "ppt", "pep", "fedrod", "lora"])
@pytest.mark.parametrize(
    "settings",
    [["aggregate=median"], ["aggregate=krum"], ["aggregate=trimmed_mean"], ["aggregate.norm_bound=median"],
     ["privacy=dp"], ["privacy=dp", "privacy.where=local", "aggregate=median"]],
)  # fmt: skip
def test_methods_that_average_can_be_protected(method, settings):
    roster(f"method={method}", *settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["method=sgpt", "privacy=dp"], "counts, of which no sensitivity is declared"),
        (["method=sgpt", "aggregate=median"], "there is no rule for its counts"),
        (["method=pfedpg", "aggregate=krum"], "there is no rule for its prompt_change"),
        (["method=pfedpg", "aggregate.norm_bound=1.0"], "norm_bound=1.0 cannot protect pfedpg"),
        (["method=pfedpg", "privacy=dp"], "Give privacy.where=local"),
        (["method=local", "privacy=dp"], "nothing leaves a client of local"),
        (["method=local", "aggregate=median"], "local sends nothing"),
        (["method=local", "aggregate=secure"], "local sends nothing"),
        (["method=central", "aggregate=secure"], "aggregate=secure has no meaning"),
        (["method=central", "privacy=dp"], "privacy=dp has no meaning"),
        (["method=fedvpt", "privacy=paper"], "fedvpt sends none"),
        (["privacy=dp", "aggregate=median"], "aggregate=mean without norm_bound"),
        (["method=fed3r", "aggregate=median"], "no rule for its moments"),
        (["privacy=dp", "privacy.where=distributed"], "Give aggregate=secure"),
        (["privacy=dp", "aggregate=secure"], "single updates, which aggregate=secure does not"),
        (
            ["privacy=dp", "privacy.where=distributed", "aggregate=secure", "privacy.colluding=9"],
            "Give fewer",
        ),
        (["method=pep", "aggregate.name=mean", "pooled=true"], "method=pep has no meaning"),
        (["method=ppt", "pooled=true"], "method=ppt has no meaning"),
        (["method=pfedpg", "pooled=true"], "method=pfedpg has no meaning"),
        (["aggregate=median", "warm_start=2"], "Give warm_start=5 or more"),
        (["privacy=dp", "method.weighting=size"], "which privacy.where=central does not .*weighting=uniform"),
        (
            ["aggregate=median", "method.weighting=size"],
            "which aggregate=median with norm_bound=median does not",
        ),
        (["aggregate=krum", "clients_per_round=6"], "clients_per_round=7 or more"),
        (["privacy=dp", "privacy.sample=secret"], "tells who took part"),
        (["privacy=dp", "method=fedvpt", "privacy.sample=secret", "privacy.where=local"], "trusted server"),
    ],
)
def test_what_cannot_be_kept_is_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        roster(*settings)


def test_local_noise_protects_pfedpg():
    assert roster("method=pfedpg", "privacy=dp", "privacy.where=local").protection.privacy.noise


def test_unknown_names_and_options_are_named():
    with pytest.raises(ConfigError, match="Did you mean 'median'"):
        config_of("aggregate=medain")
    with pytest.raises(ConfigError, match="privacy.epsilon"):
        config_of("privacy=dp", "privacy.epsilon=1")


def test_the_noise_is_as_much_as_the_budget_needs():
    budget = budget_of("privacy.max_epsilon=4")
    spent = budget.fresh()
    spent.warm_up()
    epsilons = []
    for round_ in range(budget.schedule.rounds):
        spent.visit(budget.schedule.drawn(round_), round_)
        epsilons.append(spent.metrics()["epsilon"])
    assert epsilons == sorted(epsilons)
    assert 3.9 < epsilons[-1] <= 4
    summary = spent.summary()["privacy"]
    assert summary["epsilon"] == epsilons[-1]
    assert (summary["unit"], summary["neighbours"]) == ("one training record", "replace-one")


def test_a_round_beyond_the_budget_is_not_run():
    budget = budget_of("privacy.max_epsilon=4", "rounds=3")
    budget.warm_up()
    for round_ in range(3):
        budget.visit([0, 1, 2], round_)
    with pytest.raises(FedcueError, match="more than privacy.max_epsilon=4"):
        budget.visit([0, 1, 2], 3)


def test_a_run_that_would_exceed_its_budget_is_not_started():
    with pytest.raises(ConfigError, match="Give privacy.noise=.* or more"):
        budget_of("privacy.noise=0.5")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("method", ["cue", "pep"])
def test_the_head_before_round_0_gets_its_share_of_the_budget_and_rounds_the_rest(method, share):
    """Gaussian releases add up by one over the square of their noise: by hand, for the client drawn most."""
    budget = budget_of(f"method={method}", f"privacy.head_share={share}", "privacy.max_epsilon=4", "rounds=7")
    noise, head_noise = budget.privacy.noise, budget.privacy.head_noise
    drawn = [client for round_ in range(7) for client in budget.schedule.drawn(round_)]
    visits = max(map(drawn.count, drawn)) * {"cue": 1, "pep": 2}[method]
    head, rounds = 1 / head_noise**2, visits / noise**2
    assert head / (head + rounds) == pytest.approx(share)
    together = Ledger(releases={0: 1}).epsilon((head + rounds) ** -0.5, 1e-5)
    assert together == pytest.approx(4, rel=1e-6)


def test_what_a_journal_says_was_released_is_spent() -> None:
    spent = budget_of("privacy.max_epsilon=4", "rounds=3").fresh()
    spent.recount([([0, 2], 1.0), ([2], 0.5)])
    assert spent.ledger.releases == {0: 1.0, 2: 1.5}
    assert spent.epsilon > 0


@given(
    st.floats(-9, 6).map(lambda power: 10**power),
    st.floats(1e-9, 1 - 1e-9),
    st.sampled_from(["cue", "pep", "fedvpt"]),
    st.integers(1, 6),
    st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_a_run_that_was_admitted_goes_to_its_end_and_one_release_more_is_refused(
    epsilon, share, method, rounds, clients
):
    """From a billionth to a million, and with one client alone."""
    ways = [f"method={method}", f"rounds={rounds}", f"privacy.head_share={share}", "clients_per_round=1"]
    config = load("default", [*ways, "privacy=dp", f"privacy.max_epsilon={epsilon}"])
    budget = roster_of(config, clients=clients, heldout=0).budget
    spent = budget.fresh()
    spent.warm_up()
    for round_ in range(rounds):
        spent.visit(budget.schedule.drawn(round_), round_)
    assert 0.9 * epsilon < spent.epsilon <= epsilon
    most = max(spent.ledger.releases, key=spent.ledger.releases.get)
    if share < 0.9 or not releases_before(budget.table):
        with pytest.raises(BudgetSpent, match="more than privacy.max_epsilon"):
            spent.visit([most], rounds)


@pytest.mark.parametrize("method", ["cue", "fedvpt"])
def test_a_given_noise_is_admitted_up_to_its_epsilon_and_not_a_bit_below(method):
    given = (f"method={method}", "privacy.noise=3", "privacy.head_noise=4")
    spends = budget_of(*given, "privacy.max_epsilon=100").planned().epsilon
    assert budget_of(*given, f"privacy.max_epsilon={spends!r}").planned().epsilon == spends
    with pytest.raises(ConfigError, match="Give privacy.noise=.* or more"):
        budget_of(*given, f"privacy.max_epsilon={math.nextafter(spends, 0)!r}")


@pytest.mark.parametrize("share", ["0", "1", "-0.1", "nan"])
def test_a_share_of_nothing_or_of_all_is_refused(share):
    with pytest.raises(ConfigError, match="privacy.head_share"):
        config_of("privacy=dp", f"privacy.head_share={share}")


def test_a_head_alone_gets_all_of_the_budget():
    budget = budget_of("method=fed3r", "privacy.head_share=0.1", "privacy.max_epsilon=4")
    assert budget.privacy.head_noise == budget.privacy.noise
    assert Ledger(releases={0: 1}).epsilon(budget.privacy.noise, 1e-5) == pytest.approx(4, rel=1e-6)


def test_noise_of_the_head_may_be_given_beside_that_of_rounds_only():
    given = ("method=cue", "privacy.max_epsilon=40", "privacy.head_noise=1.5")
    privacy = budget_of(*given, "privacy.noise=9").privacy
    assert (privacy.noise, privacy.head_noise) == (9, 1.5)
    with pytest.raises(ConfigError, match=r"Give both, or privacy\.head_share"):
        budget_of(*given)


def test_a_delta_that_gives_a_record_away_is_refused():
    with pytest.raises(ConfigError, match="privacy.delta=0.01 would allow to publish"):
        budget_of("privacy.delta=0.01")


def test_a_resumed_run_remembers_rounds_that_were_drawn_again():
    budget = budget_of("privacy.max_epsilon=50")
    direct, resumed = budget.fresh(), budget.fresh()
    direct.warm_up()
    for attempt in (0, 1):
        direct.visit(budget.schedule.drawn(0, attempt), 0)
    record = {"round": 1, "clients": budget.schedule.drawn(0, 1)}
    resumed.replay([record], 10)
    assert resumed.ledger == direct.ledger


def test_a_resumed_run_counts_every_draw_of_a_round_even_if_the_same_clients_are_drawn():
    """One client alone is drawn again and again: the record says how often."""
    pytest.importorskip("dp_accounting")
    config = load("default", ["clients_per_round=1", "privacy=dp", "privacy.max_epsilon=50"])
    budget = roster_of(config, clients=1, heldout=0).budget
    direct, resumed = budget.fresh(), budget.fresh()
    direct.warm_up()
    for _ in range(3):
        direct.visit([0], 0)
    resumed.replay([{"round": 1, "clients": [0], "attempts": 3}], 10)
    assert resumed.ledger == direct.ledger


@pytest.mark.parametrize(
    ("specs", "releases"),
    [
        ([reply("holds", (4,), "class_counts")], (1, 0)),
        ([reply("moments", (6,), "moments"), reply("holds", (4,), "class_counts")], (1, 0)),
        ([reply("head", (4,), "shared"), reply("holds", (4,), "class_counts")], (2, 0)),
        ([reply("head", (4,), "shared")], (1, 0)),
        ([trained("head", (4,), zeros)], (0, 1)),
        ([trained("head", (4,), zeros), reply("holds", (4,), "class_counts", returned=True)], (1, 2)),
        ([trained("head", (4,), zeros), reply("moments", (6,), "moments", returned=True)], (1, 2)),
        ([TensorSpec("change", (4,), returned=True, kind="own")], (0, 1)),
        ([TensorSpec("holds", (4,), returned=True, kind="class_counts")], (0, 1)),
    ],
)  # fmt: skip
def test_all_changes_of_a_message_are_one_release_and_all_statistics_are_one(specs, releases):
    table = table_of(*specs)
    assert (releases_before(table), releases_of_a_visit(table)) == releases


@pytest.mark.parametrize("kind", ["class_counts", "moments"])
def test_two_tensors_of_one_kind_whose_sensitivity_is_known_for_one_are_refused(kind):
    table = table_of(reply("one", (6,), kind), reply("two", (6,), kind))
    with pytest.raises(ConfigError, match=f"one tensor of {kind}, but plugin sends one, two together"):
        DifferentialPrivacy().check("plugin", table)
    DifferentialPrivacy(unit="client").check("plugin", table)
    apart = table_of(reply("one", (6,), kind), TensorSpec("two", (6,), returned=True, kind=kind))
    DifferentialPrivacy().check("plugin", apart)


@pytest.mark.parametrize(
    "ways",
    [["privacy.where=central"], ["privacy.where=distributed", "aggregate=secure"]],
    ids=lambda ways: ways[0],
)
def test_a_method_that_changes_what_was_clipped_before_it_is_added_up_is_refused(ways):
    """Another factor behind the clip, and the noise would be too little."""
    config, table = config_of("privacy=dp", *ways), table_of()
    louder = Summing(
        table, prepare=lambda update: replace(update, tensors={"head": 9 * update.tensors["head"]})
    )
    with pytest.raises(ConfigError, match=r"plugin changes it once more \(added\)"):
        check_protection("plugin", louder, config.aggregate, config.privacy)
    check_protection("plugin", Summing(table), config.aggregate, config.privacy)


@pytest.mark.parametrize(
    ("count", "mean"), [(0, 9.0), (1, 0.0)], ids=["a mean of no images", "images without a mean"]
)
def test_who_holds_a_class_has_both_images_and_a_mean_of_it(count, mean):
    config = config_of("method=ncm", "aggregate=median")
    sent = [(1, 2.0)] * 3 + [(count, mean)] * 2
    updates = [
        Update(i, 1, {"centroids": torch.full((1, 1, 4), m), "holds": torch.tensor([n])})
        for i, (n, m) in enumerate(sent)
    ]
    sums = combined(config.aggregate, updates, {}, STATISTICS)
    assert (sums.total("centroids") / sums.total("holds")).unique().tolist() == [2.0]


def test_a_refused_round_is_not_spent():
    budget = budget_of("privacy.max_epsilon=4", "rounds=3")
    budget.warm_up()
    for round_ in range(3):
        budget.visit([0, 1, 2], round_)
    spent, told = budget.epsilon, []
    budget.journal = lambda *entry: told.append(entry)
    with pytest.raises(BudgetSpent, match="Round 4 would spend"):
        budget.visit([0, 1, 2], 3)
    assert (budget.epsilon, told) == (spent, [])


def test_fresh_noise_cannot_be_repeated():
    one, two = (NoiseStream.secret("server", 0).uniform_words(4) for _ in range(2))
    assert not (one == two).any()


def test_paper_noise_is_labelled():
    summary = roster("privacy=paper").budget.summary()["privacy"]
    assert "not differential privacy" in summary["label"]
    assert "epsilon" not in summary


@pytest.mark.parametrize("rule", ["aggregate.norm_bound=median", "aggregate=median"])
def test_how_many_images_a_client_claims_does_not_move_a_class_mean(rule):
    config = config_of("method=ncm", rule)
    means, updates = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), []
    for client, count in enumerate([1, 1, 1, 2, 10**9]):
        tensors = {"centroids": means * count, "holds": torch.tensor([count])}
        updates.append(Update(client, 1, tensors))
    sums = combined(config.aggregate, updates, {}, STATISTICS)
    torch.testing.assert_close(sums.total("centroids") / sums.total("holds")[:, None], means)


def test_where_nothing_is_released_the_noise_is_one_and_nothing_is_spent():
    budget = budget_of("method=fedvpt", "rounds=0")
    assert (budget.privacy.noise, budget.privacy.head_noise) == (1.0, 1.0)
    assert budget.planned().epsilon == 0


def test_where_nothing_is_sent_before_round_0_there_is_one_noise_for_all():
    privacy = budget_of("method=fedvpt", "privacy.head_share=0.9").privacy
    assert privacy.head_noise == privacy.noise


def test_noise_is_in_shares_only_where_clients_of_a_secure_sum_add_it_together():
    for where, shared in (("local", False), ("distributed", True)):
        made = roster("privacy=dp", f"privacy.where={where}", "aggregate=secure", "method=fedvpt")
        assert (made.protection.shares(0) is not None) is shared
    assert roster("aggregate=secure", "method=fedvpt").protection.shares(0) is None


def test_every_noise_is_drawn_under_the_name_of_who_draws_it_and_when():
    asked: list[tuple[object, ...]] = []

    def stream(*names: object) -> NoiseStream:
        asked.append(names)
        return NoiseStream.simulated(0)

    reference, update = {"head": torch.zeros(4, 3)}, Update(7, 5, {"head": torch.ones(4, 3)})
    for where in ("local", "central"):
        privacy = config_of("privacy=dp", "privacy.noise=1.0", f"privacy.where={where}").privacy
        protection = Protection(config_of().aggregate, privacy, Summing(table_of()), stream, (4, 4))
        for moment in ("warm up", 3):
            left = protection.guard(7, moment).leave(update, reference)
            adding = protection.adding(reference, moment)
            adding.add(left)
            adding.sums()
    assert asked == [(7, "warm up"), (7, 3), ("server", "warm up"), ("server", 3)]


def test_before_round_0_there_is_another_noise_and_all_replies_count_alike():
    """Shares too are made for those who are asked then."""
    privacy = config_of("privacy=dp", "privacy.noise=2.0", "privacy.head_noise=3.0").privacy
    heavy = Summing(table_of(), "size")
    protection = Protection(config_of().aggregate, privacy, heavy, NoiseStream.secret, (9, 4))
    assert protection.at("warm up").settled == 3.0
    assert protection.at(0).settled == 2.0
    for moment, weighting in (("warm up", "uniform"), (0, "size")):
        assert protection.guard(1, moment).summing.weighting == weighting
        assert protection.guard(1, moment).summing.table is heavy.table


def test_noise_in_shares_needs_half_of_the_room_of_a_sum():
    """Numbers up to 2^20 in 32 bits: 2^11 clients fit into 64 bits, and with noise half as many."""
    shared = config_of("privacy=dp", "privacy.where=distributed", "aggregate=secure", "privacy.noise=1.0")
    most = shared.aggregate.fixed_point.most_clients // 2
    for asked, refused in ((most, False), (most + 1, True)):
        protection = Protection(
            shared.aggregate, shared.privacy, Summing(table_of()), NoiseStream.secret, (2, asked)
        )
        if refused:
            with pytest.raises(FedcueError, match="may not fit 64 bits"):
                protection.shares(0)
        else:
            assert protection.shares(0).honest == shared.aggregate.needed(most)


def test_the_streams_of_a_simulation_are_named_after_its_seed_and_purpose():
    words = simulated_stream(5)("server", 0).uniform_words(4)
    assert (words == NoiseStream.simulated(5, "privacy", "server", 0).uniform_words(4)).all()


def test_without_differential_privacy_nothing_is_counted_and_no_round_says_an_epsilon():
    plain = roster("method=pep").budget
    plain.warm_up()
    plain.visit([0, 1], 0)
    assert (plain.epsilon, plain.released, plain.metrics(), plain.summary()) == (0.0, 0, {}, {})
    assert plain.planned().ledger.rounds == plain.schedule.rounds
    assert Budget(plain.privacy, plain.table, plain.schedule, plain.ledger).simulated


def test_every_release_of_a_client_is_counted():
    """Pep's clients tell their classes once, and then send changes and centroids in every round."""
    spent = budget_of(
        "method=pep", "privacy.max_epsilon=50", "privacy.head_noise=2", "privacy.noise=4"
    ).fresh()
    spent.warm_up()
    assert spent.released == 18 * (4 / 2) ** 2
    spent.visit([0, 1, 2], 0)
    assert spent.released == 18 * (4 / 2) ** 2 + 3 * 2
    assert spent.metrics() == {"epsilon": spent.epsilon}
    told = spent.summary()["privacy"]
    assert (told["noise_multiplier"], told["noise_multiplier_before_rounds"]) == (4, 2)
    assert told["releases_of_one_client"] == 6
    before = Ledger(releases={0: 4}).epsilon(4.0, 1e-5)
    assert told["epsilon_before_rounds"] == before < told["epsilon"]


def test_a_secret_sample_is_promised_only_as_long_as_it_is_one(monkeypatch):
    monkeypatch.setattr(accounting, "ORDERS", (4.0, 8.0))  # quick, if not tight
    secret = ("method=fedvpt", "privacy.max_epsilon=50", "privacy.noise=20", "privacy.sample=secret")
    for sample, words in ((secret, True), (secret[:-1], False)):
        budget = budget_of(*sample)
        against = budget.summary()["privacy"]["against"]
        assert against.startswith("everyone who sees what the server sends")
        assert ("as long as nobody but the server knows who took part" in against) is words
        assert budget.ledger == Ledger(10 if words else None, 18)
        assert budget.fresh().ledger == budget.ledger


def test_a_budget_that_begins_anew_tells_no_journal():
    told = []
    budget = budget_of("method=fedvpt", "privacy.max_epsilon=50")
    budget.journal = lambda *entry: told.append(entry)
    budget.fresh().visit([0], 0)
    assert told == []
    budget.visit([0], 0)
    assert told == [([0], 1)]


def test_a_resumed_run_that_has_spent_too_much_says_in_which_round():
    budget = budget_of("method=fedvpt", "privacy.max_epsilon=4", "rounds=3").fresh()
    record = {"round": 7, "clients": [0], "attempts": 50}
    with pytest.raises(BudgetSpent, match="Round 7 would spend"):
        budget.replay([record], 10)


def test_delta_is_less_than_one_over_the_training_records_of_clients_that_train():
    """Eighteen of twenty clients train, on 60 images each: 1,080 records."""
    assert budget_of("privacy.delta=0.0009").privacy.delta == 0.0009
    for delta in (1 / 1080, 0.001):
        with pytest.raises(ConfigError, match="one of the 1080 training records"):
            budget_of(f"privacy.delta={delta!r}")


def test_a_method_that_sends_what_it_trains_as_it_is_leaves_it_alone():
    """Whatever its shapes, also where their sizes are not known."""
    table = table_of(TensorSpec("prompts", (None, 3), returned=True, kind="shared"))
    config = config_of("privacy=dp")
    check_protection("plugin", Summing(table), config.aggregate, config.privacy)
