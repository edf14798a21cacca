"""Settings are chosen on validation images, and the tuned recipe gives what was chosen."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedcue.config.layers import dump, load
from fedcue.config.recipes import merge
from fedcue.errors import ConfigError, RunFolderError
from fedcue.grid import tune
from fedcue.grid.cells import Grid, product_of
from fedcue.train.sgd import rate


def candidate(method: str, lr: float, *accuracies: float) -> tune.Candidate:
    return tune.Candidate(method, {"training.lr": lr}, accuracies)


def test_the_best_finished_trial_is_chosen_and_the_first_of_equals() -> None:
    values = {"training.lr": (0.1, 0.2, 0.3)}
    trials = [
        candidate("pep", 0.1, 0.5, 0.7), candidate("pep", 0.2, 0.6, 0.7), candidate("pep", 0.3, 0.65, 0.65),
        candidate("head", 0.1, 0.5, 0.5), candidate("head", 0.2, 0.5, 0.5), candidate("head", 0.3, 0.9),
        candidate("ppt", 0.1), candidate("ppt", 0.2), candidate("ppt", 0.3),
    ]  # fmt: skip
    choices = tune.choose(trials, values, seeds=2)
    assert {method: choice.candidate.changes["training.lr"] for method, choice in choices.items()} == {
        "pep": 0.2,
        "head": 0.1,
    }
    assert choices["pep"].edges == ()
    assert choices["head"].edges == ("training.lr=0.1",)


def test_only_numbers_have_edges() -> None:
    values = {"a": ("x", "y"), "b": (True, False), "c": (5,), "d": (3, 1, 2)}
    assert tune.edges({"a": "x", "b": True, "c": 5, "d": 3}, values) == ("d=3",)


@pytest.mark.parametrize(
    ("overrides", "values", "message"),
    [
        ({}, {}, "Nothing to choose from. Give --grid"),
        ({"evaluation.on": "test"}, {"rounds": (1,)}, "never chosen on test images"),
        ({}, {"evaluation.on": ("test", "validation")}, "--grid evaluation.on= is not possible"),
    ],
)
def test_settings_are_never_chosen_on_test_images(
    overrides: dict[str, Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune.validation_grid(Grid("default", overrides, ("pep",), (0,), values))


def test_trials_are_tested_on_validation_images_only(tmp_path: Path) -> None:
    grid = tune.validation_grid(Grid("default", {}, ("pep", "head"), (0,), {"training.lr": (0.1, 0.2)}))
    assert {cell.config.evaluation.on for cell in grid.cells(tmp_path)} == {"validation"}


def test_a_tuned_recipe_keeps_what_the_recipe_says_of_a_method_at_every_scale(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'data="digits"\nmethod="pep"\n[partition]\nname="iid"\nclients=3\n'
        "[per_method.pfedpg.training]\nlr=0.5\nhead_lr=9.0\n[scale.cpu]\nrounds=2\n"
    )
    values = {"profile": ("native",)}
    grid = Grid(str(recipe), {"scale": "cpu"}, ("pfedpg",), (0,), values)
    choices = {"pfedpg": tune.Choice(tune.Candidate("pfedpg", {"profile": "native"}, (0.5,)), ())}
    tuned = tune.write_recipe(tmp_path, grid, choices)
    ran, again = grid.cells(tmp_path)[0].config, load(tuned, ["scale=cpu", "method=pfedpg"])
    assert [rate(again.training, name, 3) for name in ("head", "prompts")] == [
        rate(ran.training, name, 3) for name in ("head", "prompts")
    ]
    assert rate(again.training, "head", 0) == 0.25, "what is asked for wins"
    assert (again.training.batch_size, again.training.epochs) == (
        ran.training.batch_size,
        ran.training.epochs,
    )


@pytest.mark.parametrize("key", ["training.lr", "training.head_lr"])
def test_a_tuned_recipe_keeps_the_profile_that_all_trials_had(tmp_path: Path, key: str) -> None:
    values = {key: (0.01, 0.02)}
    grid = Grid("default", {"profile": "native"}, ("pfedpg",), (0,), values)
    cells = grid.cells(tmp_path)
    choices = {"pfedpg": tune.Choice(tune.Candidate("pfedpg", {key: 0.02}, (0.5,)), ())}
    tuned = tune.write_recipe(tmp_path, grid, choices)
    program, verb, path, *settings = shlex.split(tuned.read_text().splitlines()[0].removeprefix("# "))
    assert (program, verb, Path(path)) == ("fedcue", "compare", tuned)
    again = load(tuned, ["method=pfedpg", *(text for text in settings if "=" in text)]).training
    ran = next(cell.config.training for cell in cells if "0.02" in cell.variant)
    for name in ("head", "prompts"):
        assert rate(again, name, 0) == rate(ran, name, 0)


def test_a_trial_that_left_clients_untested_is_not_chosen(tmp_path: Path) -> None:
    for name, more in {"a": {}, "b": {"untested": [{"client": 1, "reason": "nan"}]}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"mean_accuracy": 0.5, **more}))
    assert list(tune._accuracies([tmp_path / "a", tmp_path / "b"])) == [0.5]


@pytest.mark.parametrize("summary", ["{}", '{"mean_accuracy": "high"}', '{"mean_accuracy": [1]}'])
def test_a_trial_whose_summary_says_nothing_is_named(tmp_path: Path, summary: str) -> None:
    (tmp_path / "summary.json").write_text(summary)
    with pytest.raises(RunFolderError, match="is not a finished run that can be read"):
        list(tune._accuracies([tmp_path]))


def test_what_was_chosen_at_a_scale_holds_at_that_scale(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'data="digits"\nmethod="pep"\n[partition]\nname="iid"\nclients=3\n'
        "[scale.cpu.per_method.pep.training]\nlr=9.0\nepochs=2\n"
    )
    grid = Grid(str(recipe), {"scale": "cpu"}, ("pep",), (0,), {"training.lr": (0.25,)})
    choices = {"pep": tune.Choice(tune.Candidate("pep", {"training.lr": 0.25}, (0.5,)), ())}
    tuned = tune.write_recipe(tmp_path, grid, choices)
    small = load(tuned, ["scale=cpu"]).training
    assert (small.lr, small.epochs) == (0.25, 2)
    assert load(tuned).training.lr == 0.1


def test_a_tuned_recipe_gives_what_the_trial_ran_with(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'data="digits"\nmethod="pep"\n[partition]\nname="iid"\nclients=3\n'
        '[per_method.fedvpt]\n"training.epochs"=2\n"training.lr"=9.0\n'
    )
    values = {"training.lr": (0.25,), "method.prompts": (4,), "profile": ("native",)}
    grid = Grid(str(recipe), {"rounds": 2}, ("fedvpt",), (0,), values)
    changes = product_of(values)[0]
    choices = {"fedvpt": tune.Choice(tune.Candidate("fedvpt", changes, (0.5,)), ())}
    tuned = tune.write_recipe(tmp_path, grid, choices)
    assert tuned.read_text().startswith(f"# fedcue compare {tuned} --methods fedvpt rounds=2\n")
    ran, again = grid.cells(tmp_path)[0].config, load(tuned, ["method=fedvpt", "rounds=2"])
    ours, theirs = dump(ran), dump(again)
    merge(theirs, {"recipe": "r"})
    assert ours == theirs
    assert again.method.prompts == 4
    assert again.training.epochs == 2
    assert load(tuned, ["method=head"]).training.lr == 0.1, "other methods are as they were"


@pytest.mark.parametrize("scale", [{}, {"scale": "cpu"}], ids=["no scale", "scale"])
def test_a_tuned_recipe_keeps_the_data_and_the_backbone_it_was_tuned_on(
    tmp_path: Path, scale: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'data="digits"\nmethod="pep"\n[partition]\nname="iid"\nclients=3\n'
        "[scale.cpu]\nrounds=2\n[scale.cpu.partition]\nclients=2\n"
    )
    monkeypatch.chdir(tmp_path)
    Path("vit").mkdir()
    given = {
        "backbone": "vit",
        "backbone.feature_norm": 2.0,
        "partition.alpha": 0.5,
        "partition.clients": 4,
        "partition": "dirichlet",
        "data.train_per_class": 9,
        "data.root": "here",
        "heldout": 1,
    }
    grid = Grid(str(recipe), {**scale, **given}, ("fedvpt",), (0,), {"training.lr": (0.25,)})
    choices = {"fedvpt": tune.Choice(tune.Candidate("fedvpt", {"training.lr": 0.25}, (0.5,)), ())}
    tuned = tune.write_recipe(tmp_path, grid, choices)
    ran = grid.cells(tmp_path)[0].config
    again = load(tuned, ["method=fedvpt", *(f"{key}={value}" for key, value in scale.items())])
    assert again.data == ran.data
    assert again.partition == ran.partition
    assert again.heldout == ran.heldout
    assert again.backbone == ran.backbone.model_copy(update={"name": str(tmp_path / "vit")})
