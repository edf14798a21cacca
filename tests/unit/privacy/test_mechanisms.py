"""Sensitivities by hand, defaults, and what grows with the number of draws."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import get_args

import pytest
import torch
from support.tables import table_of

from fedcue.aggregate.mean import PlainAdding, Summing, Sums
from fedcue.config.layers import load
from fedcue.errors import ConfigError, FedcueError
from fedcue.methods.tensors import reply, trained, zeros
from fedcue.privacy import sensitivity
from fedcue.privacy.adding import clipped
from fedcue.privacy.budget import releases_before
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.discrete import discrete_gaussian
from fedcue.privacy.mechanisms import PaperNoise, Privacy
from fedcue.privacy.noise import most_noise
from fedcue.privacy.shares import Shares
from fedcue.privacy.stream import NoiseStream
from fedcue.secure.fixed_point import FixedPoint
from fedcue.types import Kind, TensorSpec, Update

STATISTICS = table_of(reply("centroids", (3, 4, 5), "class_sums"), reply("holds", (4,), "class_counts"))


def test_the_papers_and_our_default_budgets() -> None:
    assert PaperNoise().epsilon == 0.2  # the paper's DP table
    privacy = DifferentialPrivacy()
    assert (privacy.max_epsilon, privacy.delta, privacy.clip, privacy.radius) == (8.0, 1e-5, 1.0, 1.0)
    assert (privacy.where, privacy.sample) == ("central", "known")


def moves(privacy: DifferentialPrivacy, layers: int, *without: str) -> dict[str, float]:
    """Return how far each kind moves, where it is sent with the others."""
    shapes = {
        "shared": (1,),
        "own": (1,),
        "class_sums": (layers, 4, 5),
        "class_counts": (4,),
        "moments": (15,),
    }
    kinds: list[Kind] = [kind for kind in get_args(Kind) if kind not in without]
    table = table_of(*[TensorSpec(kind, shapes[kind], returned=True, kind=kind) for kind in kinds])
    return privacy.moves({kind: torch.zeros(shapes[kind]) for kind in kinds}, table)


def test_sensitivities_by_hand() -> None:
    """Replace-one: a clipped change moves by twice the clip, sums of L layers by 2 sqrt(L) radii.

    With second moments, at ``k = 1``, sums and moments move by sqrt(4.5) and counts by sqrt(18).
    """
    privacy = DifferentialPrivacy(clip=0.3, radius=2.0)
    found = moves(privacy, 3, "moments")
    assert (found["shared"], found["own"]) == pytest.approx((0.6, 0.6))
    assert (found["class_sums"], found["class_counts"]) == pytest.approx((4 * math.sqrt(3), 2.0))
    found = moves(privacy, 1)
    assert found["class_sums"] == pytest.approx(2 * math.sqrt(4.5))
    assert found["class_counts"] == pytest.approx(math.sqrt(18))
    assert found["moments"] == pytest.approx(4 * math.sqrt(4.5))


def test_sensitivities_of_a_client_by_hand() -> None:
    """Replace-one client: changes by twice the clip, statistics by twice the bound in units of an image."""
    found = moves(DifferentialPrivacy(clip=0.3, radius=2.0, unit="client", client_bound=5.0), 3)
    assert found["shared"] == pytest.approx(0.6)
    assert found["class_sums"] == pytest.approx(20)
    assert found["class_counts"] == pytest.approx(10)
    assert found["moments"] == pytest.approx(40)


@pytest.mark.parametrize("moments", [False, True])
def test_all_statistics_before_round_0_are_one_release(moments) -> None:
    specs = [*STATISTICS.specs, *([reply("moments", (6,), "moments")] if moments else [])]
    assert releases_before(table_of(*specs)) == 1
    assert releases_before(table_of()) == 0


@pytest.mark.parametrize(("clients", "kept"), [(1, True), (4, True), (100, False)])
def test_the_threshold_of_rare_classes_grows_with_the_number_of_local_draws(clients: int, kept: bool) -> None:
    """A sum of n local noises deviates by sqrt(n): 3 deviations of 2 x noise, here 6 sqrt(n), against 50."""
    privacy = DifferentialPrivacy(where="local", noise=1.0)
    sums = Sums(STATISTICS, updates=clients)
    sums.tensors = {"centroids": torch.ones(3, 4, 5), "holds": torch.full((4,), 50.0)}
    sums.deviations = privacy.deviations(sums, STATISTICS)
    privacy.drop_rare(sums, STATISTICS)
    assert sums.tensors["holds"].any().item() == kept
    assert sums.tensors["centroids"].any().item() == kept


@pytest.mark.parametrize(
    ("threshold", "kept"), [(None, [False, False, True, True]), (7.0, [False, False, False, True])]
)
def test_a_class_is_dropped_below_three_deviations_or_a_public_threshold(threshold, kept) -> None:
    privacy = DifferentialPrivacy(noise=1.0, count_threshold=threshold)
    sums = Sums(STATISTICS, updates=1)
    counts = torch.tensor([-9.0, 5.9, 6.0, 7.0])
    sums.tensors = {"centroids": torch.ones(3, 4, 5), "holds": counts.clone()}
    sums.deviations = {"centroids": 1.0, "holds": 2.0}
    privacy.drop_rare(sums, STATISTICS)
    assert torch.equal(sums.tensors["holds"], torch.where(torch.tensor(kept), counts, 0.0))
    assert torch.equal(sums.tensors["centroids"], torch.tensor(kept)[:, None].expand(3, 4, 5).float())


@pytest.mark.parametrize(
    ("where", "shares", "draws"),
    [
        ("central", None, 1),
        ("local", None, 9),
        ("distributed", Shares(FixedPoint(), honest=4), 9 / 4),
    ],
)
def test_the_deviation_that_is_told_of_a_sum_is_that_of_the_draws_in_it(where, shares, draws) -> None:
    """Nine updates: one draw at the server, nine at clients, or nine shares of which four make one draw."""
    privacy = DifferentialPrivacy(where=where, noise=0.7)
    sums = Sums(STATISTICS, updates=9)
    sums.tensors = {"centroids": torch.zeros(3, 4, 5), "holds": torch.zeros(4)}
    told = privacy.deviations(sums, STATISTICS, shares)
    one = {"centroids": 0.7 * 2 * math.sqrt(3), "holds": 0.7 * 2}
    assert told == pytest.approx({name: math.sqrt(draws) * deviation for name, deviation in one.items()})


def test_a_share_of_noise_is_made_for_what_rounding_adds() -> None:
    """Nine numbers in steps of 1/16: a record moves them by 1 and, rounded, by sqrt(9) / 16 more."""
    told: dict[str, float] = {}

    class Told(Shares):
        def add(self, update, deviations, stream):
            told.update(deviations)
            return update

    privacy = DifferentialPrivacy(where="distributed", noise=0.7, clip=0.5)
    table, words = table_of(trained("head", (9,), zeros)), {"head": torch.zeros(9, dtype=torch.uint64)}
    shares = Told(FixedPoint(fraction_bits=4), honest=2)
    privacy.share(Update(0, 1, words), table, shares, lambda: NoiseStream.simulated(0))
    assert told == pytest.approx({"head": 0.7 * (1 + 3 / 16)})


def test_a_clients_statistics_are_shortened_together_each_measured_in_images() -> None:
    """Sums of length 6 are three images of length 2; with counts of length 4 that is 5 images."""
    privacy = DifferentialPrivacy(unit="client", radius=2.0, client_bound=1.0)
    update = Update(0, 1, {"centroids": torch.full((3, 4, 5), 6 / 60**0.5), "holds": torch.full((4,), 2.0)})
    found = privacy.bounded(update, {}, STATISTICS).tensors
    assert found["centroids"].norm().item() == pytest.approx(6 / 5)
    assert found["holds"].tolist() == pytest.approx([0.4] * 4)


def test_central_noise_is_drawn_once_whatever_the_number_of_clients() -> None:
    privacy, table = DifferentialPrivacy(noise=1.0, clip=1e-6), table_of()
    for clients in (1, 50):
        adding = privacy.adding(
            PlainAdding(Summing(table)), {"head": torch.zeros(4, 3)}, table, lambda: NoiseStream.simulated(3)
        )
        for client in range(clients):
            adding.add(Update(client, 1, {"head": torch.zeros(4, 3)}))
        expected = privacy.noisy({"head": torch.zeros(4, 3)}, table, NoiseStream.simulated(3))["head"]
        torch.testing.assert_close(adding.sums().tensors["head"], expected)


def test_a_change_that_only_one_client_was_sent_is_clipped_and_noised_too() -> None:
    """pFedPG's prompts: personal to a client, yet trained on its records."""
    table = table_of(TensorSpec("prompt_change", (2, 2), returned=True, kind="own"))
    update = Update(0, 5, {"prompt_change": torch.full((2, 2), 10.0)}, loss=1.0)
    assert clipped(update, {}, table, 1.0).tensors["prompt_change"].norm().item() == pytest.approx(1.0)
    privacy = DifferentialPrivacy(where="local", noise=1.0)
    left = privacy.leave(update, {}, table, lambda: NoiseStream.simulated(1))
    assert left.loss is None
    assert (left.tensors["prompt_change"] - 0.5).abs().max() > 0.1


def test_all_trained_tensors_are_clipped_as_one_vector() -> None:
    table = table_of(trained("head", (1,), zeros), trained("prompts", (1,), zeros))
    update = Update(0, 5, {"head": torch.tensor([3.0]), "prompts": torch.tensor([4.0])})
    sent = {"head": torch.zeros(1), "prompts": torch.zeros(1)}
    bounded = clipped(update, sent, table, 1.0).tensors
    assert [bounded[name].item() for name in ("head", "prompts")] == pytest.approx([0.6, 0.8])


def test_one_honest_client_is_enough_for_the_noise_and_none_is_refused() -> None:
    assert Shares(FixedPoint(), honest=1).honest == 1
    with pytest.raises(ConfigError, match="leaves no client whose noise counts"):
        Shares(FixedPoint(), honest=0)


def test_as_much_noise_is_drawn_as_the_grid_allows_and_no_more() -> None:
    table, zeros_ = table_of(), {"head": torch.zeros(4, 3)}
    most = most_noise(12)
    DifferentialPrivacy(noise=most).noisy(zeros_, table, NoiseStream.simulated(0))
    with pytest.raises(FedcueError, match="is more than its grid allows for 12 numbers"):
        DifferentialPrivacy(noise=1.001 * most).noisy(zeros_, table, NoiseStream.simulated(0))


def test_class_sums_in_two_tensors_move_as_if_they_were_one() -> None:
    """One layer and three layers of one image: together as far as four, and each gets noise for that."""
    table = table_of(reply("one", (1, 4, 5), "class_sums"), reply("three", (3, 4, 5), "class_sums"))
    sent = {"one": torch.zeros(1, 4, 5), "three": torch.zeros(3, 4, 5)}
    assert DifferentialPrivacy(radius=2.0).moves(sent, table) == pytest.approx({"one": 8.0, "three": 8.0})


def test_features_of_class_statistics_are_as_long_as_they_may_be() -> None:
    for method in ("ncm", "cue", "fed3r"):
        config = load("default", ["privacy=dp", f"method={method}"])
        assert config.backbone.feature_norm == config.privacy.radius == 1.0


@pytest.mark.parametrize(("where", "length"), [("local", 10.0), ("central", 1.0)])
def test_only_a_trusted_server_clips_what_arrives(where: str, length: float) -> None:
    """What clients of their own noise send is longer than a clip, and is added up as it is."""
    privacy, reference = DifferentialPrivacy(where=where, noise=1e-5, clip=1.0), {"head": torch.zeros(4, 3)}
    adding = privacy.adding(
        PlainAdding(Summing(table_of())), reference, table_of(), lambda: NoiseStream.simulated(0)
    )
    adding.add(Update(0, 1, {"head": torch.full((4, 3), 10 / 12**0.5)}))
    assert adding.sums().tensors["head"].norm().item() == pytest.approx(length, abs=1e-3)


def test_statistics_leave_a_client_in_float64_and_what_it_trains_as_declared() -> None:
    table = table_of(trained("head", (1,), zeros), *STATISTICS.specs)
    types = {spec.name: DifferentialPrivacy().upload_dtype(spec) for spec in table}
    assert types == {"head": torch.float32, "centroids": torch.float64, "holds": torch.float64}


def test_without_protection_nothing_is_counted_hidden_or_noised() -> None:
    for privacy in (Privacy(), PaperNoise()):
        told = (privacy.differential, privacy.central, privacy.distributed, privacy.secret_sample)
        assert told == (False, False, False, False)
        assert not privacy.hide_priors
    told = {
        where: (DifferentialPrivacy(where=where).central, DifferentialPrivacy(where=where).distributed)
        for where in ("central", "local", "distributed")
    }
    assert told == {"central": (True, False), "local": (False, False), "distributed": (False, True)}
    assert DifferentialPrivacy().differential
    assert DifferentialPrivacy().hide_priors
    assert {kind: DifferentialPrivacy(sample=kind).secret_sample for kind in ("known", "secret")} == {
        "known": False,
        "secret": True,
    }


def test_statistics_shorter_than_the_bound_stay_as_they_are() -> None:
    """Half a step below the bound and half of it; what is longer is shortened to it, not below."""
    privacy = DifferentialPrivacy(unit="client", radius=1.0, client_bound=2.0)
    for length, after in ((1.0, 1.0), (1.9, 1.9), (2.0, 2.0), (4.0, 2.0)):
        update = Update(0, 1, {"holds": torch.tensor([length, 0.0, 0.0, 0.0])})
        assert privacy.bounded(update, {}, STATISTICS).tensors["holds"][0].item() == pytest.approx(after)
        one_image = DifferentialPrivacy(unit="image", client_bound=2.0)
        assert one_image.bounded(update, {}, STATISTICS).tensors["holds"][0].item() == pytest.approx(length)


def test_before_noise_in_shares_a_client_shortens_its_change_and_keeps_its_loss() -> None:
    table = table_of(TensorSpec("prompts", (2,), returned=True, kind="shared"))
    privacy = DifferentialPrivacy(where="distributed", clip=1.0, noise=1.0)
    update = Update(4, 10, {"prompts": torch.tensor([4.0, 4.0])}, loss=0.5)
    left = privacy.leave(update, {"prompts": torch.tensor([1.0, 0.0])}, table, lambda: NoiseStream(bytes(32)))
    assert (left.client, left.samples, left.loss) == (4, 10, None)
    assert left.tensors["prompts"].dtype == torch.float64, "noise is still to come"
    change = left.tensors["prompts"] - torch.tensor([1.0, 0.0])
    assert torch.allclose(change, torch.tensor([0.6, 0.8]).double(), atol=1e-6)


@pytest.mark.parametrize("k", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("layers", [1, 3])
def test_no_image_moves_sums_counts_and_moments_by_more_than_one_unit_and_some_do(k, layers, monkeypatch):
    """In its class at the cosine ``t`` in every layer, and into another one at a right angle."""
    monkeypatch.setattr(sensitivity, "MOMENTS", k)
    lengths = sensitivity.of_an_image(3.0, layers, moments=True)
    a, b, c = lengths["class_sums"] / 3, lengths["class_counts"], lengths["moments"] / 9
    within = [
        (2 + 2 * (layers - 1) * 2 - 2 * t) / a**2 + 2 * (1 - t**2) / c**2
        for t in torch.linspace(-1, 1, 2001).tolist()
    ]
    assert max(within) == pytest.approx(1, abs=1e-6)
    assert 2 * layers / a**2 + 2 / b**2 + 2 / c**2 == pytest.approx(1)


def test_lengths_of_an_image_grow_with_its_length_and_those_of_moments_with_its_square() -> None:
    assert sensitivity.units(3.0) == {"class_sums": 3.0, "class_counts": 1.0, "moments": 9.0}
    one, three = (sensitivity.of_an_image(radius, 2, moments=True) for radius in (1.0, 3.0))
    ratios = {kind: three[kind] / one[kind] for kind in one}
    assert ratios == pytest.approx({"class_sums": 3.0, "class_counts": 1.0, "moments": 9.0})


def test_moments_without_class_sums_move_as_with_those_of_one_layer() -> None:
    found = moves(DifferentialPrivacy(radius=2.0), 1, "class_sums")
    assert found["moments"] == pytest.approx(4 * math.sqrt(4.5))
    assert found["class_counts"] == pytest.approx(math.sqrt(18))


def test_before_round_0_the_noise_of_the_head_is_added() -> None:
    privacy = DifferentialPrivacy(noise=2.0, head_noise=3.0)
    assert (privacy.before_rounds().settled, privacy.settled) == (3.0, 2.0)
    assert DifferentialPrivacy(noise=2.0).before_rounds().settled == 2.0


def test_noise_does_not_depend_on_the_order_in_which_a_message_names_its_tensors() -> None:
    table = table_of(trained("head", (2,), zeros), trained("prompts", (3,), zeros))
    sent = {"prompts": torch.zeros(3), "head": torch.zeros(2)}
    turned = dict(reversed(sent.items()))
    one, two = (
        DifferentialPrivacy(noise=1.0).noisy(own, table, NoiseStream.simulated(0)) for own in (sent, turned)
    )
    assert all(torch.equal(one[name], two[name]) for name in sent)
    words = {name: tensor.to(torch.uint64) for name, tensor in sent.items()}
    shares = Shares(FixedPoint(), honest=2)
    one, two = (
        shares.add(Update(0, 1, own), {"head": 1.0, "prompts": 1.0}, NoiseStream.simulated(0)).tensors
        for own in (words, dict(reversed(words.items())))
    )
    assert all(torch.equal(one[name], two[name]) for name in sent)


def test_the_grid_must_hold_the_noise_of_all_numbers_of_a_message() -> None:
    """Sixteen numbers in two tensors: half of what the grid allows for four numbers."""
    table = table_of(trained("head", (12,), zeros), trained("prompts", (4,), zeros))
    sent = {"head": torch.zeros(12), "prompts": torch.zeros(4)}
    DifferentialPrivacy(noise=most_noise(16)).noisy(sent, table, NoiseStream.simulated(0))
    with pytest.raises(FedcueError, match="is more than its grid allows for 16 numbers"):
        DifferentialPrivacy(noise=1.01 * most_noise(16)).noisy(sent, table, NoiseStream.simulated(0))


def test_a_share_of_noise_has_at_least_sixteen_steps_and_room_for_64_of_its_deviations() -> None:
    """With a step of 1 and numbers up to 2^16, a deviation of up to 2^10 steps."""
    shares = Shares(FixedPoint(fraction_bits=0, limit=2.0**16), honest=1)
    assert (shares.steps(15.0), shares.steps(14.5), shares.steps(1023.0)) == (16, 16, 1024)
    for deviation, steps in ((14.0, 15), (1023.5, 1025)):
        with pytest.raises(ConfigError, match=f"deviation of {steps} steps .* Allowed: 16 to 1024"):
            shares.steps(deviation)


def test_a_share_of_noise_is_raised_by_a_part_in_a_million_and_shared_by_the_root_of_the_honest() -> None:
    shares = Shares(FixedPoint(fraction_bits=32, limit=2.0**20), honest=4)
    assert shares.steps(2.0) == 2**32 + 2**12 + 1


def test_where_classes_are_not_counted_none_is_dropped() -> None:
    sums = Sums(STATISTICS, updates=1)
    sums.tensors = {"centroids": torch.ones(3, 4, 5)}
    sums.deviations = {"centroids": 9.0}
    DifferentialPrivacy(noise=1.0).drop_rare(sums, STATISTICS)
    assert sums.tensors["centroids"].all()


@pytest.mark.parametrize(
    ("where", "table", "refused"),
    [("central", table_of(), False), ("local", table_of(), True), ("central", STATISTICS, True)],
)
def test_a_sample_is_secret_for_clipped_updates_at_a_trusted_server_only(where, table, refused) -> None:
    privacy = DifferentialPrivacy(sample="secret", where=where)
    with pytest.raises(ConfigError, match="Give privacy.sample=known") if refused else nullcontext():
        privacy.check("plugin", table)
    privacy.model_copy(update={"sample": "known"}).check("plugin", table)


def test_a_share_of_noise_is_added_to_the_words_step_by_step() -> None:
    shares, words = Shares(FixedPoint(), honest=1), torch.arange(5, dtype=torch.int64).to(torch.uint64)
    sent = shares.add(Update(0, 1, {"head": words}), {"head": 2.0}, NoiseStream.simulated(0)).tensors["head"]
    steps = discrete_gaussian(5, shares.steps(2.0), NoiseStream.simulated(0))
    assert (sent.view(torch.int64) - torch.arange(5)).tolist() == steps.tolist()
