"""What every dataset can be asked for: a test split, limits, a long tail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from support.datasets import made

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import NoImages
from fedcue.data.readers.digits import Digits
from fedcue.data.readers.folders import Item, build
from fedcue.registry import DATASETS


def counts(dataset: Dataset, indices: np.ndarray) -> list[int]:
    return np.bincount(dataset.labels[indices], minlength=len(dataset.classes)).tolist()


def test_digits_get_a_stratified_test_split() -> None:
    dataset = Digits().load(0)
    assert len(dataset) == 1797
    assert len(dataset.test) == round(0.2 * 1797)
    total = np.array(counts(dataset, np.arange(1797)))
    assert np.abs(np.array(counts(dataset, dataset.test)) - 0.2 * total).max() < 1


def test_the_test_split_depends_on_the_seed_alone() -> None:
    assert np.array_equal(Digits().load(3).test, Digits().load(3).test)
    assert not np.array_equal(Digits().load(3).test, Digits().load(4).test)
    limited = Digits(train_per_class=10).load(3)
    full = Digits().load(3)
    assert len(limited.test) == len(full.test)


def test_long_tail_falls_from_everything_to_one_part_in_a_hundred() -> None:
    dataset = Digits(imbalance=100).load(0)
    before = counts(Digits().load(0), Digits().load(0).train)
    kept = counts(dataset, dataset.train)
    assert kept[0] == before[0]
    assert kept[9] == int(np.ceil(before[9] / 100))
    assert kept == sorted(kept, reverse=True)
    assert counts(dataset, dataset.test) == counts(Digits().load(0), Digits().load(0).test)


def test_images_per_class_are_limited() -> None:
    dataset = Digits(train_per_class=5, test_per_class=2).load(0)
    assert counts(dataset, dataset.train) == [5] * 10
    assert counts(dataset, dataset.test) == [2] * 10
    assert len(dataset.images) == len(dataset) == 70


def test_owners_keep_a_part_of_their_own_images_for_testing() -> None:
    owners = np.repeat([0, 1, 2], [20, 5, 1])
    dataset = Dataset(
        "made",
        ("a",),
        np.zeros(26, dtype=np.int64),
        np.zeros(26, dtype=np.bool_),
        NoImages("made", 26),
        owners=owners,
        owner_names=("x", "y", "z"),
    )

    class Made(Digits):
        def read(self) -> Dataset:
            return dataset

    loaded = Made().load(0)
    assert np.bincount(owners[loaded.test], minlength=3).tolist() == [4, 1, 0]


def test_limits_count_each_domain_on_its_own() -> None:
    items = [Item(Path("x.png"), "a", domain=domain) for domain in "xy" for _ in range(10)]
    dataset = build("made", items)

    class Made(Digits):
        def read(self) -> Dataset:
            return dataset

    loaded = Made(train_per_class=3, test_per_class=1).load(0)
    assert loaded.domains is not None
    assert np.bincount(loaded.domains[loaded.train]).tolist() == [3, 3]
    assert np.bincount(loaded.domains[loaded.test]).tolist() == [1, 1]


@pytest.mark.parametrize("name", DATASETS.builtin)
def test_every_dataset_refuses_unknown_keys_and_bad_values(name: str) -> None:
    options = DATASETS.get(name)
    assert options.name == name  # type: ignore[attr-defined]
    with pytest.raises(ValidationError):
        options(rot="x")  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        options(test_share=1.0)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        options(imbalance=0.5)  # type: ignore[call-arg]


def client_data(**options: object) -> Digits:
    """Return options whose data has three owners, of which only the first has test images."""
    labels = np.tile([0, 1], 15)
    owners = np.repeat([0, 1, 2], 10)
    is_test = np.zeros(30, dtype=bool)
    is_test[:2] = True

    class Made(Digits):
        def read(self) -> Dataset:
            return made(labels, is_test, owners=owners)

    return Made.model_validate(options)


def test_test_images_are_split_off_clients_that_have_none_if_asked() -> None:
    assert client_data().load(0).test.tolist() == [0, 1]
    asked = client_data(test_share=0.4).load(0)
    assert asked.owners is not None
    assert np.bincount(asked.owners[asked.test]).tolist() == [2, 4, 4]
    assert np.bincount(asked.labels[asked.test[2:6]]).tolist() == [2, 2]


def test_an_owner_is_tested_on_classes_it_still_trains_on() -> None:
    labels = np.tile(np.arange(5), 6)
    dataset = made(labels, owners=np.repeat([0, 1], 15))

    class Made(Digits):
        def read(self) -> Dataset:
            return dataset

    loaded = Made(test_share=0.4).load(0)
    assert loaded.owners is not None
    for owner in (0, 1):
        mine = loaded.owners == owner
        assert set(labels[mine & loaded.is_test]) <= set(labels[mine & ~loaded.is_test])
        assert (mine & loaded.is_test).sum() == 6


def test_a_root_is_the_same_place_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Digits(root=Path("here")).root == tmp_path / "here"
