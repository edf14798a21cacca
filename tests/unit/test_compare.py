"""Grids: what is planned, what is already there, what is chosen, what is said when it is wrong."""

from __future__ import annotations

import json
import shlex
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedcue.config.layers import dump, load
from fedcue.config.recipes import merge
from fedcue.errors import ConfigError, RunFolderError
from fedcue.federate import compare as comparing
from fedcue.federate import grid as grids
from fedcue.federate import tune
from fedcue.grid.compare import difference, run_grid, state_of
from fedcue.federate.grid import Grid, Job
from fedcue.train.sgd import rate

# The grid


def test_methods_and_seeds_are_read_once_each() -> None:
    assert grids.read_methods("pep, fedvpt,pep") == ("pep", "fedvpt")
    assert len(grids.read_methods("all")) >= 8
    assert grids.read_methods(None, ["head"]) == ("head",)
    assert grids.read_seeds("2,0,2", ()) == (2, 0)
    assert grids.read_seeds(None, (1, 2)) == (1, 2)


@pytest.mark.parametrize("seeds", ["", "a", "0,-1", "0,,1", "1.5", "²"])
def test_bad_seeds_are_explained(seeds: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a number from 0\. Give some, as in --seeds 0,1,2"):
        grids.read_seeds(seeds, ())


def test_unknown_methods_are_explained() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'fedvpt'"):
        grids.read_methods("pep,fedvtp")


def test_values_are_typed() -> None:
    texts = ["a.b=0.1,3", "c=sgd,adam", "d=[1,2],[3]", "e=true,false", "f=none,0.5"]
    assert grids.read_values(texts) == {
        "a.b": (0.1, 3), "c": ("sgd", "adam"), "d": ([1, 2], [3]), "e": (True, False), "f": ("none", 0.5),
    }  # fmt: skip


@pytest.mark.parametrize("texts", [["a"], ["=1"], ["a="], ["a=1", "a=2"]])
def test_bad_values_are_explained(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"key=value,value|given twice"):
        grids.read_values(texts)


def test_the_grid_is_methods_by_values_by_seeds(tmp_path: Path) -> None:
    grid = Grid("default", {"rounds": 3}, ("pep", "head"), (0, 1), {"training.lr": (0.1, 0.2)})
    jobs = grid.jobs(tmp_path)
    assert len(jobs) == 8
    assert [job.folder.name for job in jobs[:3]] == [
        "pep-training.lr=0.1-seed0", "pep-training.lr=0.1-seed1", "pep-training.lr=0.2-seed0",
    ]  # fmt: skip
    assert {job.config.rounds for job in jobs} == {3}
    assert jobs[2].config.training.lr == 0.2
    assert jobs[2].label == "pep training.lr=0.2 seed 0"


@pytest.mark.parametrize(
    ("overrides", "values", "message"),
    [
        ({"seed": 1}, {}, "seed= cannot be set in a grid. Give --methods and --seeds"),
        ({}, {"method": ("pep",)}, "method= cannot be set"),
        ({}, {"method.temperature": (0.1,)}, "head: Unknown key 'method.temperature'"),
        ({"rouns": 1}, {}, "pep: Unknown key 'rouns'.*Did you mean 'rounds'"),
    ],
)
def test_bad_grids_are_explained(
    tmp_path: Path, overrides: dict[str, Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Grid("default", overrides, ("pep", "head"), (0,), values).jobs(tmp_path)


def test_folder_names_stay_in_the_folder_and_apart() -> None:
    names = {
        grids.folder_name(method, {"k": value}, 0)
        for method in ("../../up", "a.b:C")
        for value in ("/etc", "_etc", [1, 2], "x" * 300, "x" * 301)
    }
    assert len(names) == 10
    for name in names:
        assert Path(name).name == name
        assert not name.startswith(".")
        assert len(name) < 130


def test_the_recipes_compare_table(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        '[compare]\nmethods=["pep"]\nseeds=[4]\ntarget=0.5\n[compare.sweep]\nmethod.period=[1,2]\nrounds=[3]\n'
    )
    table = grids.compare_table(str(recipe))
    assert (table.methods, table.seeds, table.target) == (("pep",), (4,), 0.5)
    assert table.sweep == {"method.period": (1, 2), "rounds": (3,)}
    for wrong in ('seeds="a"', "target=2.0", "sed=[1]", "sweep={rounds=3}", "sweep={rounds=[]}"):
        recipe.write_text(f"[compare]\n{wrong}\n")
        with pytest.raises(ConfigError, match="compare"):
            grids.compare_table(str(recipe))


# What is already there


class Recorder:
    def __init__(self) -> None:
        self.todo: list[str] = []

    def planned(self, jobs: Any, todo: Any) -> None:
        self.todo = [job.label for job in todo]

    def began(self, job: Job) -> None: ...

    def finished_round(self, job: Job, record: Any) -> None: ...

    def ended(self, job: Job, problem: str | None) -> None: ...


def make_job(folder: Path, *overrides: str) -> Job:
    return Job("pep", {}, 0, load("default", overrides), folder)


def test_a_folder_is_new_stopped_finished_or_another_run(tmp_path: Path) -> None:
    job = make_job(tmp_path / "run")
    assert state_of(job) == "new"
    job.folder.mkdir()
    (job.folder / ".lock").touch()
    assert state_of(job) == "new"
    settings = {**dump(job.config), "workers": 7, "environment": {"commit": "another"}}
    (job.folder / "config.toml").write_text(tomli_w.dumps(settings))
    assert state_of(job) == "stopped"
    (job.folder / "summary.json").write_text("{")
    assert state_of(job) == "stopped"
    (job.folder / "summary.json").write_text("{}")
    assert state_of(job) == "finished"
    other = make_job(job.folder, "training.lr=0.5")
    assert state_of(other) == "other"
    assert difference(other) == "there training.lr=0.1, asked for training.lr=0.5"
    (job.folder / "config.toml").unlink()
    assert state_of(job) == "other"


def test_finished_runs_are_not_run_and_other_runs_are_refused(tmp_path: Path) -> None:
    job = make_job(tmp_path / "run")
    job.folder.mkdir()
    (job.folder / "config.toml").write_text(tomli_w.dumps(dump(job.config)))
    (job.folder / "summary.json").write_text("{}")
    watcher = Recorder()
    assert run_grid([job], watcher) == {}
    assert watcher.todo == []
    with pytest.raises(
        RunFolderError, match=rf"there rounds={job.config.rounds}, asked for rounds=3.*--overwrite"
    ):
        run_grid([make_job(job.folder, "rounds=3")], watcher)


def test_an_unexpected_failure_is_told_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(comparing, "run", fail)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    ours, theirs = Pipe(duplex=False)
    comparing._work(dump(load()), str(tmp_path / "run"), {}, theirs)
    log = tmp_path / "run.error.txt"
    assert ours.recv() == ("end", f"ZeroDivisionError: no (details in {log})")
    assert "Traceback" in log.read_text()


# Choosing


def trial(method: str, lr: float, *accuracies: float) -> tune.Trial:
    return tune.Trial(method, {"training.lr": lr}, accuracies)


def test_the_best_finished_trial_is_chosen_and_the_first_of_equals() -> None:
    values = {"training.lr": (0.1, 0.2, 0.3)}
    trials = [
        trial("pep", 0.1, 0.5, 0.7), trial("pep", 0.2, 0.6, 0.7), trial("pep", 0.3, 0.65, 0.65),
        trial("head", 0.1, 0.5, 0.5), trial("head", 0.2, 0.5, 0.5), trial("head", 0.3, 0.9),
        trial("ppt", 0.1), trial("ppt", 0.2), trial("ppt", 0.3),
    ]  # fmt: skip
    choices = tune.choose(trials, values, seeds=2)
    assert {method: choice.trial.changes["training.lr"] for method, choice in choices.items()} == {
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
        tune.trial_grid(Grid("default", overrides, ("pep",), (0,), values))


def test_trials_are_tested_on_validation_images_only(tmp_path: Path) -> None:
    grid = tune.trial_grid(Grid("default", {}, ("pep", "head"), (0,), {"training.lr": (0.1, 0.2)}))
    assert {job.config.evaluation.on for job in grid.jobs(tmp_path)} == {"validation"}


def test_a_tuned_recipe_keeps_what_the_recipe_says_of_a_method_at_every_scale(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'data="digits"\nmethod="pep"\n[partition]\nname="iid"\nclients=3\n'
        "[per_method.pfedpg.training]\nlr=0.5\nhead_lr=9.0\n[scale.cpu]\nrounds=2\n"
    )
    values = {"profile": ("native",)}
    grid = Grid(str(recipe), {"scale": "cpu"}, ("pfedpg",), (0,), values)
    choices = {"pfedpg": tune.Choice(tune.Trial("pfedpg", {"profile": "native"}, (0.5,)), ())}
    tuned = tune.write_recipe(tmp_path, grid, choices)
    ran, again = grid.jobs(tmp_path)[0].config, load(tuned, ["scale=cpu", "method=pfedpg"])
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
    jobs = grid.jobs(tmp_path)
    choices = {"pfedpg": tune.Choice(tune.Trial("pfedpg", {key: 0.02}, (0.5,)), ())}
    tuned = tune.write_recipe(tmp_path, grid, choices)
    program, verb, path, *settings = shlex.split(tuned.read_text().splitlines()[0].removeprefix("# "))
    assert (program, verb, Path(path)) == ("fedcue", "compare", tuned)
    again = load(tuned, ["method=pfedpg", *(text for text in settings if "=" in text)]).training
    ran = next(job.config.training for job in jobs if "0.02" in job.variant)
    for name in ("head", "prompts"):
        assert rate(again, name, 0) == rate(ran, name, 0)


def test_a_trial_that_left_clients_untested_is_not_chosen(tmp_path: Path) -> None:
    for name, more in {"a": {}, "b": {"untested": [{"client": 1, "reason": "nan"}]}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"mean_accuracy": 0.5, **more}))
    assert list(tune._accuracies([tmp_path / "a", tmp_path / "b"])) == [0.5]


def test_what_was_chosen_at_a_scale_holds_at_that_scale(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'data="digits"\nmethod="pep"\n[partition]\nname="iid"\nclients=3\n'
        "[scale.cpu.per_method.pep.training]\nlr=9.0\nepochs=2\n"
    )
    grid = Grid(str(recipe), {"scale": "cpu"}, ("pep",), (0,), {"training.lr": (0.25,)})
    choices = {"pep": tune.Choice(tune.Trial("pep", {"training.lr": 0.25}, (0.5,)), ())}
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
    changes = grids.product_of(values)[0]
    choices = {"fedvpt": tune.Choice(tune.Trial("fedvpt", changes, (0.5,)), ())}
    tuned = tune.write_recipe(tmp_path, grid, choices)
    assert tuned.read_text().startswith(f"# fedcue compare {tuned} --methods fedvpt rounds=2\n")
    ran, again = grid.jobs(tmp_path)[0].config, load(tuned, ["method=fedvpt", "rounds=2"])
    ours, theirs = dump(ran), dump(again)
    merge(theirs, {"recipe": "r"})
    assert ours == theirs
    assert again.method.prompts == 4
    assert again.training.epochs == 5
    assert load(tuned, ["method=head"]).training.lr == 0.1, "other methods are as they were"
