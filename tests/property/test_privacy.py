"""Privacy that is true: sensitivities on random neighbours, exact sums and scales of the noise.

Attacks on what is released are in ``test_privacy_attacks``, those on whole runs in ``test_privacy_run``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from support.attacks import lower, upper
from support.tables import table_of
from support.tiny_federation import TinyFederation
from torch import Tensor

from fedcue.aggregate.class_means import MomentSums, Prototypes, whole
from fedcue.aggregate.mean import PlainAdding, Summing, Sums
from fedcue.methods.pep import PEP
from fedcue.methods.tensors import reply as replied
from fedcue.methods.tensors import trained as trained_spec
from fedcue.methods.tensors import zeros
from fedcue.privacy.adding import clipped
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.mechanisms import PaperNoise
from fedcue.privacy.sensitivity import MOMENTS, STATISTICS, of_an_image
from fedcue.privacy.stream import NoiseStream
from fedcue.types import ServerState, Update

CLASSES, LAYERS, WIDTH = 4, 3, 5
TABLE = table_of(
    trained_spec("head", (CLASSES, WIDTH), zeros),
    trained_spec("prompts", (2, WIDTH), zeros),
    replied("centroids", (LAYERS, CLASSES, WIDTH), "class_sums", returned=True),
    replied("holds", (CLASSES,), "class_counts", returned=True),
)
ALL = table_of(*TABLE.specs, replied("moments", (WIDTH * (WIDTH + 1) // 2,), "moments"))
KINDS = TABLE.kinds
SENT = {"head": torch.ones(CLASSES, WIDTH), "prompts": torch.zeros(2, WIDTH)}
SEEDS = st.integers(0, 2**31)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(seed: int) -> Callable[[], NoiseStream]:
    """Return what makes a stream of noise; calls go on in one stream."""
    made = NoiseStream.simulated(seed)
    return lambda: made


def statistics(privacy, vectors: Tensor, labels: Tensor, generator=None) -> dict[str, Tensor]:
    sums = privacy.class_sums(CLASSES, generator or noise(0))
    for part in torch.arange(len(labels)).split(3):
        sums.add(vectors[part], labels[part])
    return sums.reply()


def added_up(privacy, reference, generator, *updates: Update) -> Sums:
    """Return the sums that a server makes of updates."""
    adding = privacy.adding(PlainAdding(Summing(TABLE)), reference, TABLE, generator)
    for update in updates:
        adding.add(update)
    return adding.sums()


def trained(seed: int, size: float) -> Update:
    tensors = {name: t + size * torch.randn(t.shape, generator=stream(seed)) for name, t in SENT.items()}
    return Update(0, 10, tensors, loss=1.0)


# How far one record moves a release


@given(SEEDS, st.floats(1e-3, 1e3), st.floats(0.1, 10), st.integers(0, CLASSES - 1))
@settings(max_examples=150, deadline=None)
def test_one_record_moves_sums_and_counts_by_no_more_than_one_unit(seed, size, radius, label):
    privacy = DifferentialPrivacy(radius=radius)
    generator = stream(seed)
    vectors = size * torch.randn(7, LAYERS, WIDTH, generator=generator)
    labels = torch.randint(CLASSES, (7,), generator=generator)
    others, other_labels = vectors.clone(), labels.clone()
    others[0] = -size * torch.randn(LAYERS, WIDTH, generator=generator).sign() * vectors[0].abs()
    other_labels[0] = label
    one, two = statistics(privacy, vectors, labels), statistics(privacy, others, other_labels)
    moved = sum(
        float(((one[name] - two[name]) / privacy.moves(one, TABLE)[name]).square().sum()) for name in one
    )
    assert math.sqrt(moved) <= 1 + 1e-9


def test_the_bound_on_sums_and_counts_is_reached():
    privacy = DifferentialPrivacy(radius=2.0)
    same = torch.zeros(1, LAYERS, WIDTH)
    same[..., 0] = 5.0
    one, two = (statistics(privacy, sign * same, torch.tensor([1])) for sign in (1, -1))
    distance = (one["centroids"] - two["centroids"]).norm() / privacy.moves(one, TABLE)["centroids"]
    assert distance.item() == pytest.approx(1)


def moments(privacy: DifferentialPrivacy, vectors: Tensor) -> Tensor:
    """Return the second moments that a client sends of vectors ``[B, d]``."""
    sums, found = privacy.class_sums(CLASSES, noise(0)), MomentSums()
    found.add(sums.shortened(vectors))
    return found.reply(torch.float64)


def joint(privacy: DifferentialPrivacy, vectors: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return class sums, counts and second moments of vectors ``[B, d]``: one release."""
    return statistics(privacy, vectors[:, None], labels) | {"moments": moments(privacy, vectors)}


def moved(privacy: DifferentialPrivacy, one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """Return how far apart two messages are, in units of the noise."""
    moves = privacy.moves(one, ALL)
    return math.sqrt(sum(float(((one[name] - two[name]) / moves[name]).square().sum()) for name in one))


@given(SEEDS, st.floats(1e-3, 1e3), st.floats(0.1, 10), st.integers(0, CLASSES - 1), st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_one_record_moves_statistics_with_second_moments_by_no_more_than_one_unit(
    seed, size, radius, label, shrink
):
    privacy, generator = DifferentialPrivacy(radius=radius), stream(seed)
    vectors = size * torch.randn(7, WIDTH, generator=generator)
    labels = torch.randint(CLASSES, (7,), generator=generator)
    others, other_labels = vectors.clone(), labels.clone()
    others[0] = shrink * size * torch.randn(WIDTH, generator=generator)
    other_labels[0] = label
    assert moved(privacy, joint(privacy, vectors, labels), joint(privacy, others, other_labels)) <= 1 + 1e-9


def test_no_two_vectors_move_the_statistics_by_more_than_one_unit_and_some_do():
    """All lengths up to the radius and all angles, within a class and from one to another, on a grid."""
    a, b, c = (of_an_image(1.0, 1, moments=True)[kind] for kind in STATISTICS)
    p, q, t = torch.meshgrid(*[torch.linspace(low, 1, 201).double() for low in (0, 0, -1)], indexing="ij")
    matrices = (p**4 + q**4 - 2 * (p * q * t) ** 2) / c**2
    within = (p**2 + q**2 - 2 * p * q * t) / a**2 + matrices
    across = (p**2 + q**2) / a**2 + 2 / b**2 + matrices
    for largest in (within.max().item(), across.max().item()):
        assert largest == pytest.approx(1, abs=1e-4)
        assert largest <= 1 + 1e-12
    assert 0.5 <= MOMENTS <= 2


@pytest.mark.parametrize("label", [1, 2])
def test_the_bound_on_statistics_with_second_moments_is_reached(label):
    """In its class a record moves most at the cosine ``-k / 2``; into another one at a right angle."""
    privacy = DifferentialPrivacy(radius=2.0)
    cosine = -MOMENTS / 2 if label == 1 else 0.0
    vectors = torch.zeros(2, WIDTH, dtype=torch.float64)
    vectors[0, 0], vectors[1, 0], vectors[1, 1] = 9.0, 9 * cosine, 9 * math.sqrt(1 - cosine**2)
    one = joint(privacy, vectors[:1], torch.tensor([1]))
    two = joint(privacy, vectors[1:], torch.tensor([label]))
    assert 1 - 1e-4 < moved(privacy, one, two) <= 1  # vectors are snapped to a grid


@given(SEEDS, SEEDS, st.integers(1, 40), st.floats(1e-2, 1e2), st.floats(0.1, 50))
@settings(max_examples=100, deadline=None)
def test_any_two_clients_statistics_are_within_one_unit_where_clients_are_protected(
    first, second, images, size, bound
):
    privacy = DifferentialPrivacy(unit="client", client_bound=bound, radius=1.5)

    def left(seed: int) -> dict[str, Tensor]:
        generator = stream(seed)
        vectors = size * torch.randn(images, LAYERS, WIDTH, generator=generator)
        labels = torch.randint(CLASSES, (images,), generator=generator)
        reply = statistics(privacy, vectors, labels) | {"moments": moments(privacy, vectors[:, 0])}
        return dict(privacy.leave(Update(0, images, reply), {}, ALL, noise(1)).tensors)

    one, two = left(first), left(second)
    moved = sum(
        float(((one[name] - two[name]) / privacy.moves(one, ALL)[name]).square().sum()) for name in one
    )
    assert math.sqrt(moved) <= 1 + 1e-9


@given(SEEDS, st.floats(1e-2, 1e2))
@settings(max_examples=50, deadline=None)
def test_class_sums_in_several_tensors_of_a_message_are_layers_of_one(seed, size):
    """Two descriptions of the same image: together no more than one unit, and there is a pair that reaches it."""
    table = table_of(
        replied("outer", (1, CLASSES, WIDTH), "class_sums"),
        replied("inner", (LAYERS, CLASSES, WIDTH), "class_sums"),
        replied("holds", (CLASSES,), "class_counts"),
    )
    privacy, generator = DifferentialPrivacy(), stream(seed)

    def message(vectors: Tensor) -> dict[str, Tensor]:
        sums = statistics(privacy, vectors, torch.tensor([1, 2]))
        return {"outer": sums["centroids"][:1], "inner": sums["centroids"][1:], "holds": sums["holds"]}

    vectors = size * torch.randn(2, LAYERS + 1, WIDTH, generator=generator)
    opposite = torch.cat([-vectors[:1], vectors[1:]])
    one, two = message(vectors), message(opposite)
    moves = privacy.moves(one, table)
    moved = math.sqrt(sum(float(((one[name] - two[name]) / moves[name]).square().sum()) for name in one))
    assert moved <= 1
    if size > 10:  # every vector reaches the radius
        assert moved == pytest.approx(1, abs=1e-3)


# Sums that do not round


@given(SEEDS, st.floats(1e-3, 1e3))
@settings(max_examples=50, deadline=None)
def test_a_clients_statistics_are_exact_sums_of_what_each_image_adds(seed, radius):
    """In whatever order: an image moves them by its own vector, and not by how others round beside it."""
    privacy, generator = DifferentialPrivacy(radius=radius), stream(seed)
    vectors = 2 * radius * torch.randn(40, WIDTH, generator=generator)
    labels, order = (
        torch.randint(CLASSES, (40,), generator=generator),
        torch.randperm(40, generator=generator),
    )
    one, two = (joint(privacy, vectors[rows], labels[rows]) for rows in (torch.arange(40), order))
    assert all(torch.equal(one[name], two[name]) for name in one)
    without = joint(privacy, vectors[1:], labels[1:])
    alone = joint(privacy, vectors[:1], labels[:1])
    assert torch.equal(one["centroids"] - alone["centroids"], without["centroids"])
    assert whole(alone["moments"]).trace() <= radius**2


@pytest.mark.parametrize("unit", ["image", "client"])
def test_a_trusted_servers_sums_are_exact_in_whatever_order_updates_come(unit):
    """Of numbers so different that float64 would round: a small one beside large ones is not lost."""
    privacy = DifferentialPrivacy(unit=unit, noise=1e-3, count_threshold=0)
    start = {"head": 10 * torch.randn(CLASSES, WIDTH, generator=stream(1)), "prompts": SENT["prompts"]}
    updates = []
    for client in range(40):
        tensors = {
            name: start[name] + 0.1 * torch.randn(start[name].shape, generator=stream(client))
            for name in start
        }
        vectors = torch.randn(9, LAYERS, WIDTH, generator=stream(client))
        tensors |= statistics(privacy, vectors, torch.arange(9) % CLASSES)
        updates.append(Update(client, 9, tensors))
    one = added_up(privacy, start, noise(5), *updates).tensors
    two = added_up(privacy, start, noise(5), *reversed(updates)).tensors
    three = added_up(
        privacy, start, noise(5), *sorted(updates, key=lambda u: float(u.tensors["head"][0, 0]))
    ).tensors
    for name in one:
        assert torch.equal(one[name], two[name])
        assert torch.equal(one[name], three[name])


def test_a_trusted_server_bounds_a_client_that_did_not():
    privacy = DifferentialPrivacy(unit="client", client_bound=2.0, noise=1e-4, count_threshold=0)
    reply = {"centroids": torch.full((LAYERS, CLASSES, WIDTH), 50.0), "holds": torch.full((CLASSES,), 50.0)}
    sums = added_up(privacy, {}, noise(1), Update(0, 1, reply))
    length = math.sqrt(sum(float(tensor.square().sum()) for tensor in sums.tensors.values()))
    assert length == pytest.approx(2.0, rel=1e-2)


@given(SEEDS, SEEDS, st.floats(1e-3, 1e3), st.floats(1e-3, 10))
@settings(max_examples=100, deadline=None)
def test_updates_of_any_two_datasets_are_within_twice_the_clip(first, second, size, clip):
    one, two = (clipped(trained(seed, size), SENT, TABLE, clip).tensors for seed in (first, second))
    distance = math.sqrt(sum(float((one[name] - two[name]).square().sum()) for name in SENT))
    assert distance <= 2 * clip * (1 + 1e-9)


def test_short_changes_are_not_clipped():
    update = trained(0, 1e-3)
    after = clipped(update, SENT, TABLE, 1.0).tensors
    for name in SENT:
        torch.testing.assert_close(after[name].float(), update.tensors[name])


# What leaves a client


def test_every_class_is_released_whether_the_client_has_it_or_not():
    privacy = DifferentialPrivacy(where="local", noise=1.0)
    reply = statistics(privacy, torch.randn(6, LAYERS, WIDTH), torch.zeros(6, dtype=torch.int64))
    sent = privacy.leave(Update(0, 6, reply), {}, TABLE, noise(1)).tensors
    assert (sent["centroids"] != 0).all()
    assert (sent["holds"] != 0).all()


@pytest.mark.parametrize("where", ["central", "local"])
def test_the_training_loss_stays_at_the_client(where):
    privacy = DifferentialPrivacy(where=where, noise=1.0)
    assert privacy.leave(trained(0, 1.0), SENT, TABLE, noise(1)).loss is None


def test_rare_and_absent_classes_are_dropped_after_the_noise():
    privacy = DifferentialPrivacy(noise=0.5, radius=1.0)
    labels = torch.tensor([0] * 50 + [1] * 1)
    reply = statistics(privacy, torch.randn(51, LAYERS, WIDTH), labels)
    sums = added_up(privacy, {}, noise(3), Update(0, 51, reply))
    assert (sums.total("holds") > 0).tolist() == [True, False, False, False]
    assert torch.equal(sums.total("centroids")[:, 1:], torch.zeros(LAYERS, CLASSES - 1, WIDTH))


# The scale of the noise


def noise_of(privacy, seed: int) -> dict[str, Tensor]:
    """Return the noise of one release, in units of its stated deviation."""
    update = clipped(trained(0, 1.0), SENT, TABLE, privacy.clip)
    reply = statistics(privacy, torch.zeros(200, LAYERS, WIDTH), torch.arange(200) % CLASSES)
    update = Update(0, 10, {**update.tensors, **reply})
    if privacy.where == "local":
        noisy = privacy.leave(update, SENT, TABLE, noise(seed)).tensors
    else:
        noisy = added_up(privacy, SENT, noise(seed), update).tensors
    return {
        name: (noisy[name] - update.tensors[name])
        / (privacy.noise * privacy.moves(update.tensors, TABLE)[name])
        for name in update.tensors
    }


@pytest.mark.parametrize("where", ["central", "local"])
def test_noise_is_gaussian_of_the_stated_scale(where):
    privacy = DifferentialPrivacy(where=where, noise=1.7, clip=0.3, radius=2.0)
    releases = [noise_of(privacy, seed) for seed in range(200)]
    for name in KINDS:
        draws = torch.cat([release[name].flatten() for release in releases])
        assert draws.std().item() == pytest.approx(1, abs=4 / math.sqrt(2 * len(draws)))
        assert kstest(draws.numpy(), "norm").pvalue > 1e-4


def test_paper_noise_is_laplace_of_the_papers_scale():
    privacy = PaperNoise(epsilon=0.2)
    vectors = torch.randn(8, LAYERS, WIDTH, generator=stream(5))
    labels = torch.zeros(8, dtype=torch.int64)
    distances = (vectors - vectors.mean(0)).abs().sum(-1).amax(0)  # [L]
    scale = 2 * distances / 8 / 0.2
    releases = [statistics(privacy, vectors, labels, noise(seed))["centroids"] for seed in range(300)]
    units = (torch.stack(releases)[:, :, 0] - vectors.mean(0)) / scale[:, None]
    assert kstest(units.flatten().numpy(), "laplace").pvalue > 1e-4
    assert not torch.stack(releases)[:, :, 1:].any()  # absent classes are exact zeros


def test_the_papers_noise_may_grow_with_the_distance_from_the_prototype_across_clients():
    vectors = torch.randn(8, LAYERS, WIDTH, generator=stream(5))
    labels = torch.tensor([0] * 4 + [1] * 4)
    known = torch.zeros(CLASSES, dtype=torch.bool)
    known[0] = True
    told = Prototypes(torch.full((LAYERS, CLASSES, WIDTH), 50.0), known)

    def noise_of(centre: str, told: Prototypes | None) -> Tensor:
        sums = PaperNoise(centre=centre).class_sums(CLASSES, noise(0))
        sums.told = told
        sums.add(vectors, labels)
        return sums.reply()["centroids"].double()

    own, common = (noise_of(centre, told) for centre in ("own", "prototype"))
    assert torch.equal(own, noise_of("own", None))
    assert torch.equal(noise_of("prototype", None), own), "before the first round nobody knows a prototype"
    assert torch.equal(common[:, 1:], own[:, 1:]), "nor ever of a class without one"
    means = vectors[:4].double().mean(0)
    largest = [(vectors[:4].double() - centre).abs().sum(-1).amax(0) for centre in (means, 50.0)]  # [L]
    ratio = (common[:, 0] - means) / (own[:, 0] - means)
    torch.testing.assert_close(ratio, (largest[1] / largest[0])[:, None].expand_as(ratio), rtol=1e-4, atol=0)


# The paper's noise does not keep what it claims


@pytest.mark.parametrize("images", [2, 20])
def test_the_papers_noise_violates_the_epsilon_it_claims(images):
    """Equal images have no spread: they are sent as they are; with another one they are not.

    One upload exceeds 0.2, and even the 3.6 that three layers and six uploads would add up to.
    """
    privacy = PaperNoise(epsilon=0.2)
    equal = torch.ones(images, LAYERS, WIDTH)
    other = equal.clone()
    other[0] += 1.0
    labels = torch.zeros(images, dtype=torch.int64)
    centroids = [
        torch.stack([statistics(privacy, data, labels, noise(s))["centroids"][:, 0] for s in range(600)])
        for data in (equal, other)
    ]
    exact, noisy = (int((released == 1.0).all((1, 2)).sum()) for released in centroids)
    assert exact == 600, "not a trace of noise"
    assert math.log(lower(exact, 600) / upper(noisy, 600)) > 4


def test_the_papers_noise_sends_a_single_image_as_it_is():
    image = torch.randn(1, LAYERS, WIDTH)
    sent = statistics(PaperNoise(), image, torch.tensor([2]))["centroids"]
    assert torch.equal(sent[:, 2], image[0])


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_another_class_of_one_record_moves_peps_centroids_by_no_more_than_one_unit(seed):
    privacy, tiny = DifferentialPrivacy(), TinyFederation(PEP(), images=12)
    state = tiny.start()
    rows = torch.randn(state.tensors["prototypes"].shape, generator=stream(seed))
    state = ServerState(0, {**state.tensors, "prototypes": rows})
    visit = replace(
        tiny.client(0),
        class_sums=lambda classes: privacy.class_sums(classes, noise(0)),
        hide_priors=privacy.hide_priors,
    )

    def centroids(labels: Tensor) -> dict[str, Tensor]:
        priors = torch.bincount(labels, minlength=CLASSES) / len(labels)
        samples = replace(visit.samples, labels=labels, log_priors=priors.log())
        at_work = replace(visit, samples=samples, log_priors=priors.log())
        update = tiny.method.update(at_work, tiny.method.download(state, 0, visit.sizes, 0))
        return {name: update.tensors[name].double() for name in ("centroids", "holds")}

    labels = visit.samples.labels
    one, two = centroids(labels), centroids(torch.cat([labels[:-1], torch.tensor([3])]))
    moved = sum(
        float(((one[name] - two[name]) / privacy.moves(one, TABLE)[name]).square().sum()) for name in one
    )
    assert math.sqrt(moved) <= 1 + 1e-6
