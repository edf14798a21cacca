"""Which runs belong together, and what their group is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.run_folders import eight_methods, groups_in, write_run

from fedcue.report.groups import OverSeeds, federations, matters, planned_groups
from fedcue.report.palette import COLOURS


def test_seeds_form_a_group_and_unfinished_runs_stand_alone(tmp_path: Path) -> None:
    eight_methods(tmp_path, seeds=(0, 1))
    write_run(tmp_path / "pep-2", "pep", 2, done=5)
    groups = groups_in(tmp_path)
    assert [one.label for one in groups][:2] == ["Head-Tuning", "FedVPT"]
    assert groups[-2].label == "PEP-FedPT"
    assert groups[-2].seeds == [0, 1]
    assert groups[-1].label == "PEP-FedPT, seed 2, stopped"
    assert groups[-1].slot % COLOURS == groups[-2].slot % COLOURS


ELSEWHERE: dict[str, tuple[Any, Any]] = {
    "data__root": ("/here/cifar100", "/mnt/there/images"),
    "data__cache_folder": ("/tmp/a", "/tmp/b"),
    "data__cache_bytes": (0, 2**31),
    "cache": ({"limit_mb": 1}, {"limit_mb": 2, "folder": "/tmp/c"}),
    "evaluation__chunk": (100, 200),
    "evaluation__cls_sample": (0, 200),
    "workers": (1, 2),
    "device": ("cpu", "cuda"),
    "log": (["mlflow"], []),
    "checkpoint": ({"every": 1}, {"every": 0}),
    "snapshots": ([], [0, 10]),
    "environment": ({"torch": "2.12"}, {"torch": "2.13"}),
}


@pytest.mark.parametrize("setting", ELSEWHERE)
def test_where_and_how_a_run_is_computed_does_not_set_seeds_apart(tmp_path: Path, setting: str) -> None:
    for seed, value in enumerate(ELSEWHERE[setting]):
        write_run(tmp_path / str(seed), seed=seed, rounds=2, **{setting: value})
    (group,) = groups_in(tmp_path)
    assert (group.label, group.seeds) == ("PEP-FedPT", [0, 1])


@pytest.mark.parametrize("key", ["rounds", "method.temperature", "data.name", "data.train_per_class"])
def test_what_makes_a_result_matters(key: str) -> None:
    assert matters(key)


def test_ones_own_data_is_known_by_the_name_of_its_folder(tmp_path: Path) -> None:
    for run, root in {"a": "/here/birds", "b": "/there/birds", "c": "/here/boats"}.items():
        data = {"name": "folder", "root": root}
        write_run(tmp_path / run, seed=ord(run), rounds=2, data=data)
    assert [(one.label, one.seeds) for one in groups_in(tmp_path)] == [
        ("PEP-FedPT, folder birds", [97, 98]),
        ("PEP-FedPT, folder boats", [99]),
    ]


def test_a_grid_names_its_groups_itself(planned: dict[tuple[str, str], list[Path]]) -> None:
    planned["pep", "method.period=5"] = planned["pep", ""][:1]
    found = planned_groups(planned)
    assert [(one.label, one.seeds) for one in found] == [
        ("pep", [0, 1, 2]),
        ("head_a", [0, 1, 2]),
        ("pep method.period=5", [0]),
    ]


def test_a_federation_is_listed_once_however_many_runs_share_it(tmp_path: Path) -> None:
    for method in ("fedvpt", "pep"):
        for seed in (0, 1):
            write_run(tmp_path / f"{method}{seed}", method, seed, rounds=2)
    assert [run.path.name for run in federations(groups_in(tmp_path))] == ["fedvpt0", "fedvpt1"]


def test_a_label_names_the_settings_that_differ(tmp_path: Path) -> None:
    write_run(tmp_path / "a", method__temperature=0.05)
    write_run(tmp_path / "b", method__temperature=1.0)
    labels = [one.label for one in groups_in(tmp_path)]
    assert labels == ["PEP-FedPT, temperature 0.05", "PEP-FedPT, temperature 1"]


def test_a_label_says_only_what_is_unusual(tmp_path: Path) -> None:
    for number, changes in enumerate(
        ({}, {"temperature": 1.0}, {"prompts": 5}, {"prompts": 5, "momentum": 0})
    ):
        settings = {f"method__{key}": value for key, value in changes.items()}
        write_run(tmp_path / str(number), **settings)
    labels = [one.label for one in groups_in(tmp_path)]
    assert labels == [
        "PEP-FedPT, prompts default", "PEP-FedPT, prompts default, temperature 1", "PEP-FedPT, prompts 5",
        "PEP-FedPT, momentum 0, prompts 5",
    ]  # fmt: skip


def test_mean_and_sample_deviation_over_seeds() -> None:
    whole = OverSeeds((0.9, 0.7, 0.8))
    assert whole.mean == pytest.approx(0.8)
    assert whole.std == pytest.approx(0.1)
    assert OverSeeds((0.9,)).std is None
    partly = OverSeeds((4.0, None))
    assert (partly.mean, partly.complete) == (4.0, False)
    assert OverSeeds((None,)).mean is None


def test_settings_of_one_method_have_colours_of_their_own_and_methods_theirs_everywhere(
    tmp_path: Path,
) -> None:
    for number in range(3):
        write_run(tmp_path / "one" / str(number), rounds=2, method__temperature=number + 1.0)
    assert [group.slot for group in groups_in(tmp_path / "one")] == [0, 1, 2]
    write_run(tmp_path / "two" / "head", "head", rounds=2)
    write_run(tmp_path / "two" / "pep", rounds=2)
    write_run(tmp_path / "two" / "other", rounds=2, method__temperature=7.0)
    head, first, second = (group.slot for group in groups_in(tmp_path / "two"))
    assert head % COLOURS != first % COLOURS
    assert second == first + COLOURS
