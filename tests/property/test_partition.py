"""What every partition promises, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fedcue.data.apportion import deal, largest_remainder, spread, stratified
from fedcue.data.clients import choose_heldout, make_clients
from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import NoImages
from fedcue.data.partition import IID, ByDomain, Dirichlet, LabelSkew, Natural, Partition, Pathological
from fedcue.data.partition.dirichlet import fill
from fedcue.data.partition.pathological import draw_owners
from fedcue.errors import PartitionError
from fedcue.rng import rng

SETTINGS = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**31)


def make_dataset(train: list[int], test: list[int], domains: int = 0, seed: int = 0) -> Dataset:
    labels = np.concatenate([np.repeat(np.arange(len(train)), train), np.repeat(np.arange(len(test)), test)])
    is_test = np.arange(len(labels)) >= sum(train)
    order = rng(seed, "order").permutation(len(labels))
    return Dataset(
        name="made",
        classes=tuple(f"class-{label}" for label in range(len(train))),
        labels=labels[order],
        is_test=is_test[order],
        images=NoImages("made", len(labels)),
        domains=np.arange(len(labels)) % domains if domains else None,
        domain_names=tuple(f"domain-{number}" for number in range(domains)),
    )


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    classes = draw(st.integers(1, 12))
    train = draw(st.lists(st.integers(4, 60), min_size=classes, max_size=classes))
    test = draw(st.lists(st.integers(0, 20), min_size=classes, max_size=classes))
    assume(sum(test) > 0)
    return make_dataset(train, test, seed=draw(seeds))


@st.composite
def rules(draw: st.DrawFn) -> LabelSkew:
    clients = draw(st.integers(1, 15))
    kind = draw(st.sampled_from(["iid", "pathological", "equal", "class"]))
    if kind == "iid":
        return IID(clients=clients)
    if kind == "pathological":
        return Pathological(clients=clients, classes_per_client=draw(st.integers(1, 12)))
    alpha = draw(st.sampled_from([1e-3, 0.1, 0.3, 1.0, 100.0]))
    return Dirichlet(clients=clients, alpha=alpha, flavour=kind, min_train=draw(st.integers(1, 10)))


def split(rule: LabelSkew, dataset: Dataset, seed: int) -> Partition:
    try:
        return rule.split(dataset, rng(seed, "partition"))
    except PartitionError:
        assume(False)
        raise


@SETTINGS
@given(datasets(), rules(), seeds)
def test_every_image_goes_to_exactly_one_client_of_the_right_kind(
    dataset: Dataset, rule: LabelSkew, seed: int
) -> None:
    partition = split(rule, dataset, seed)
    assert len(partition) == rule.clients
    assert np.array_equal(np.sort(np.concatenate(partition.train)), dataset.train)
    assert np.array_equal(np.sort(np.concatenate(partition.test)), dataset.test)
    assert all(len(train) and len(test) for train, test in zip(partition.train, partition.test, strict=True))
    assert all(np.all(np.diff(part) > 0) for part in (*partition.train, *partition.test))


@SETTINGS
@given(datasets(), rules(), seeds)
def test_clients_are_tested_only_on_classes_they_train_on(
    dataset: Dataset, rule: LabelSkew, seed: int
) -> None:
    partition = split(rule, dataset, seed)
    for train, test in zip(partition.train, partition.test, strict=True):
        assert set(dataset.labels[test]) <= set(dataset.labels[train])


@SETTINGS
@given(datasets(), rules(), seeds)
def test_the_same_seed_gives_the_same_partition(dataset: Dataset, rule: LabelSkew, seed: int) -> None:
    first = split(rule, dataset, seed)
    second = split(rule, dataset, seed)
    assert all(map(np.array_equal, first.train, second.train))
    assert all(map(np.array_equal, first.test, second.test))


@SETTINGS
@given(datasets(), st.integers(1, 15), st.integers(1, 12), seeds)
def test_pathological_clients_hold_exactly_their_number_of_classes(
    dataset: Dataset, clients: int, held: int, seed: int
) -> None:
    partition = split(Pathological(clients=clients, classes_per_client=held), dataset, seed)
    owners = np.zeros(len(dataset.classes), dtype=int)
    for train in partition.train:
        owners[np.unique(dataset.labels[train])] += 1
    supply = np.bincount(dataset.labels[dataset.train], minlength=len(dataset.classes))
    assume(np.all(supply >= -(-clients * held // len(supply))))
    assert all(len(np.unique(dataset.labels[train])) == held for train in partition.train)
    assert owners.max() - owners.min() <= 1


@SETTINGS
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30), seeds)
def test_owner_counts_differ_by_at_most_one(classes: int, clients: int, held: int, seed: int) -> None:
    assume(held <= classes <= clients * held)
    owned = draw_owners(classes, clients, held, rng(seed, "owners"))
    assert np.all(owned.sum(axis=1) == held)
    assert owned.sum(axis=0).max() - owned.sum(axis=0).min() <= 1


@SETTINGS
@given(datasets(), st.sampled_from(["iid", "equal"]), st.integers(1, 15), st.floats(0.01, 10), seeds)
def test_equal_partitions_are_equal(
    dataset: Dataset, kind: str, clients: int, alpha: float, seed: int
) -> None:
    rule = IID(clients=clients) if kind == "iid" else Dirichlet(clients=clients, alpha=alpha)
    sizes = [len(train) for train in split(rule, dataset, seed).train]
    assert max(sizes) - min(sizes) <= 1


@SETTINGS
@given(st.integers(2, 7), st.integers(1, 4), st.integers(1, 4), st.integers(1, 7) | st.none(), seeds)
@example(6, 4, 3, 6, 4864)  # two images of a class for three clients
def test_by_domain_never_mixes_domains(
    classes: int, domains: int, clients: int, held: int | None, seed: int
) -> None:
    """A client lacks a class that it owns only if its domain has fewer images of it than clients."""
    dataset = make_dataset([40] * classes, [30] * classes, domains, seed)
    rule = ByDomain(clients_per_domain=clients, classes_per_client=held)
    try:
        partition = rule.split(dataset, rng(seed, "partition"))
    except PartitionError:
        assume(False)
    assert len(partition) == domains * clients
    assert np.array_equal(np.sort(np.concatenate(partition.train)), dataset.train)
    assert np.array_equal(np.sort(np.concatenate(partition.test)), dataset.test)
    for number, train in enumerate(partition.train):
        assert {dataset.domain_names[domain] for domain in dataset.domains[train]} == {
            partition.domains[number]
        }
        if held is not None:
            inside = dataset.train[dataset.domains[dataset.train] == number // clients]
            rare = np.bincount(dataset.labels[inside], minlength=classes) < clients
            assert held - rare.sum() <= len(np.unique(dataset.labels[train])) <= held


@SETTINGS
@given(st.lists(st.integers(-1, 5), min_size=30, max_size=200), seeds)
def test_natural_clients_get_their_own_images(owners: list[int], seed: int) -> None:
    dataset = make_dataset([len(owners)], [len(owners)], seed=seed)
    whose = np.array(owners * 2)
    owned = Dataset(
        "made",
        dataset.classes,
        dataset.labels,
        dataset.is_test,
        dataset.images,
        owners=whose,
        owner_names=tuple("abcdef"),
    )
    try:
        partition = Natural(min_train=2, min_test=1).split(owned, rng(seed, "partition"))
    except PartitionError:
        assume(False)
    for name, train, test in zip(partition.names, partition.train, partition.test, strict=True):
        assert np.all(whose[train] == "abcdef".index(name))
        assert set(whose[test].tolist()) <= {"abcdef".index(name), -1}
        assert len(train) >= 2
        assert len(test) >= 1
        assert not dataset.is_test[train].any()
        assert dataset.is_test[test].all()
    used = np.concatenate(partition.test)
    assert len(np.unique(used)) == len(used)
    assert np.isin(np.flatnonzero(dataset.is_test & (whose < 0)), used).all()


@SETTINGS
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.integers(0, 4), min_size=60, max_size=60),
    st.floats(0.05, 0.95),
    seeds,
)
def test_test_images_split_off_an_owner_are_of_classes_it_trains_on(
    owners: list[int], labels: list[int], share: float, seed: int
) -> None:
    owner, label = np.array(owners), np.array(labels[: len(owners)])
    chosen = spread(owner, label, share, rng(seed, "spread"))
    left = np.delete(np.arange(len(owner)), chosen)
    assert set(zip(owner[chosen], label[chosen], strict=True)) <= set(
        zip(owner[left], label[left], strict=True)
    )
    for one in np.unique(owner):
        mine = owner == one
        spare = mine.sum() - len(np.unique(label[mine]))
        assert (owner[chosen] == one).sum() <= min(spare, np.ceil(share * mine.sum()) + 1)


@SETTINGS
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=8),
    st.lists(st.integers(0, 50), min_size=3, max_size=3),
    seeds,
)
def test_largest_remainder_is_exact_and_within_one_of_the_quota(
    weights: list[list[int]], totals: list[int], seed: int
) -> None:
    matrix, wanted = np.array(weights), np.array(totals)
    counts = largest_remainder(matrix, wanted, rng(seed, "ties"))
    sums = matrix.sum(axis=0)
    assert np.array_equal(counts.sum(axis=0), np.where(sums > 0, wanted, 0))
    assert np.all(counts[matrix == 0] == 0)
    quotas = matrix * wanted / np.maximum(sums, 1)
    assert np.all(np.abs(counts - quotas) < 1 + 1e-6)


@SETTINGS
@given(st.lists(st.integers(0, 6), min_size=1, max_size=120), st.floats(0.05, 0.95), seeds)
def test_stratified_choice_spares_a_part_of_every_group(groups: list[int], share: float, seed: int) -> None:
    chosen = stratified(np.array(groups), share, rng(seed, "strata"))
    assert len(np.unique(chosen)) == len(chosen)
    assert set(groups) == set(np.delete(np.array(groups), chosen).tolist())


def test_a_thousand_ties_are_still_shared_out_exactly() -> None:
    counts = largest_remainder(np.ones((1000, 3000)), np.full(3000, 500), rng(0, "ties"))
    assert np.all(counts.sum(axis=0) == 500)
    assert counts.sum(axis=1).std() < 60  # nobody wins all ties


def test_deal_hands_out_what_the_counts_say() -> None:
    groups = np.array([0, 1, 0, 1, 1, 0])
    counts = np.array([[1, 2], [2, 1]])
    parts = deal(groups, counts, rng(0, "deal"))
    assert [np.bincount(groups[part], minlength=2).tolist() for part in parts] == counts.tolist()


@SETTINGS
@given(datasets(), st.integers(1, 15), st.floats(0, 0.9), st.floats(0, 0.9), seeds)
def test_clients_keep_validation_and_training_apart(
    dataset: Dataset, clients: int, heldout: float, share: float, seed: int
) -> None:
    partition = split(IID(clients=clients), dataset, seed)
    try:
        made = make_clients(dataset, partition, heldout=heldout, validation_share=share, seed=seed)
    except PartitionError:
        assume(False)
    for client, train, test in zip(made, partition.train, partition.test, strict=True):
        assert np.array_equal(np.sort(np.concatenate([client.train, client.validation])), train)
        assert np.array_equal(client.test, test)
        assert len(client.train) >= 1
        assert (len(client.validation) >= 1) == (share > 0 and len(train) >= 2)
        counts = np.bincount(dataset.labels[client.train], minlength=len(dataset.classes))
        assert client.class_priors == pytest.approx(counts / counts.sum())
    assert sum(client.heldout for client in made) == round(heldout * clients)
    assert not all(client.heldout for client in made)


@SETTINGS
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 40), seeds)
def test_held_out_clients_are_spread_over_domains(domains: int, each: int, count: int, seed: int) -> None:
    total = domains * each
    empty = tuple(np.empty(0, dtype=np.int64) for _ in range(total))
    names = tuple(f"domain-{number % domains}" for number in range(total))
    partition = Partition(empty, empty, names, names)
    if count >= total:
        with pytest.raises(PartitionError, match="at most"):
            choose_heldout(partition, count, rng(seed, "heldout"))
        return
    chosen = choose_heldout(partition, count, rng(seed, "heldout"))
    per_domain = np.bincount(chosen % domains, minlength=domains)
    assert len(chosen) == count
    assert per_domain.max() - per_domain.min() <= 1


def fill_one_by_one(
    sizes: list[int], q: np.ndarray, supply: list[int], generator: np.random.Generator
) -> bytes:
    """Fill clients as the published loop does, one image at a time."""
    counts = np.zeros(q.shape, dtype=np.int64)
    ladders = np.cumsum(q, axis=1)
    while counts.sum() < sum(sizes):
        client = generator.integers(len(sizes))
        if counts[client].sum() == sizes[client]:
            continue
        label = np.searchsorted(ladders[client], generator.random())
        while counts[:, label].sum() == supply[label]:
            label = np.searchsorted(ladders[client], generator.random())
        counts[client, label] += 1
    return counts.tobytes()


def test_filling_all_at_once_has_the_distribution_of_the_loop() -> None:
    sizes, supply, runs = [2, 3, 3], [4, 1, 3], 3000
    q = np.array([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9], [0.6, 0.3, 0.1]])
    generator = rng(0, "fill")
    loop = [fill_one_by_one(sizes, q, supply, generator) for _ in range(runs)]
    ours = [fill(np.array(sizes), np.log(q), np.array(supply), generator).tobytes() for _ in range(runs)]
    seen = set(loop) | set(ours)
    distance = sum(abs(loop.count(key) - ours.count(key)) for key in seen) / (2 * runs)
    same = [fill_one_by_one(sizes, q, supply, generator) for _ in range(runs)]
    chance = sum(abs(loop.count(key) - same.count(key)) for key in seen | set(same)) / (2 * runs)
    assert distance < 1.5 * chance + 0.01
