"""Two runs are the same run if the settings that matter are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcue.config.layers import load
from fedcue.config.recipes import read_recipe
from fedcue.grid.remember import asked_at_test, differences, trained_alike

RECIPE = read_recipe("cifar100-pathological")[1]


def found(*settings: str) -> dict[str, str]:
    settled = differences(load("cifar100-pathological", settings), RECIPE)
    return {key: value for key, value in settled.items() if key != "precision"}


def test_only_what_differs_from_the_recipe_is_named() -> None:
    assert found() == {}
    assert found("seed=3") == {}
    assert found("training.lr=0.2", "method.layers=[7,8,9]") == {
        "training.lr": "0.2",
        "method.layers": "[7, 8, 9]",
    }


@pytest.mark.parametrize("method", ["cue", "fedvpt", "pfedpg"])
def test_what_the_recipe_says_of_a_method_is_no_difference(method: str) -> None:
    assert found(f"method={method}") == {}


@pytest.mark.parametrize(
    "setting",
    ["workers=3", "data.root=/somewhere", "device=cuda", "cache.limit_mb=5", "snapshots=[1]", "log=tensorboard",
     "evaluation.every=7", "evaluation.chunk=3", "checkpoint.every=0", "client_timeout=9.0"],
)  # fmt: skip
def test_where_and_how_a_run_is_computed_does_not_matter(setting: str) -> None:
    assert found(setting) == {}


@pytest.mark.parametrize(
    "setting",
    ["rounds=7", "heldout=0.2", "evaluation.priors=em", "evaluation.on=validation",
     "transport=sparse", "partition.clients=50", "data.train_per_class=3", "aggregate=median"],
)  # fmt: skip
def test_what_a_result_depends_on_matters(setting: str) -> None:
    assert len(found(setting)) >= 1


def test_a_scale_counts_with_what_it_changes() -> None:
    small, config = found("scale=cpu"), load("cifar100-pathological", ["scale=cpu"])
    assert small["training.batch_size"] == str(config.training.batch_size)
    assert small["backbone.image_size"] == str(config.backbone.image_size)
    assert "scale" not in small
    assert "method.layers" not in small


def test_a_new_name_brings_only_options_that_are_not_its_defaults() -> None:
    assert found("privacy=paper") == {"privacy.name": "paper"}
    assert found("data=tiny-imagenet", "data.train_per_class=7") == {
        "data.name": "tiny-imagenet",
        "data.train_per_class": "7",
    }


def test_an_option_of_a_new_name_is_told_from_its_default_even_if_the_recipe_has_it() -> None:
    recipe = {**RECIPE, "data": {"name": "cifar100", "train_per_class": 7}}
    for more, expected in (([], None), (["data.train_per_class=7"], "7")):
        config = load("cifar100-pathological", ["data=tiny-imagenet", *more])
        assert differences(config, recipe).get("data.train_per_class") == expected


def test_what_is_taken_away_is_none() -> None:
    recipe = {**RECIPE, "training": {"lr": 0.1, "head_lr": 0.5}}
    assert differences(load("cifar100-pathological"), recipe)["training.head_lr"] == "none"


def test_a_backbone_in_a_folder_goes_by_the_folders_name(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place / "vit").mkdir(parents=True)
        assert found(f"backbone={tmp_path / place / 'vit'}") == {"backbone.name": "vit"}
    assert found("backbone=timm/other") == {"backbone.name": "timm/other"}


def test_runs_that_differ_at_test_only_train_the_same_model() -> None:
    plain = load("default")
    for alike in ("method.logit_prior=test", "evaluation.priors=em", "workers=3"):
        assert trained_alike(load("default", [alike])) == trained_alike(plain)
    for other in ("method.logit_prior=train+test", "seed=1", "rounds=3", "method=head"):
        assert trained_alike(load("default", [other])) != trained_alike(plain)
    assert asked_at_test(load("default", ["method.logit_prior=test"])) == [
        "method.logit_prior=test",
        "evaluation.priors=labels",
        "evaluation.temperature=1.25",
        "evaluation.labelled=0",
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_row_always_says_what_the_recipe_leaves_to_the_machine(precision: str) -> None:
    config = load("cifar100-pathological", [f"precision={precision}"])
    assert differences(config, RECIPE)["precision"] == precision
    assert "precision" not in differences(load("default"), read_recipe("default")[1])
