"""Grids: which runs are planned, what they are called, and what is said when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedcue.config.words import folder_name
from fedcue.errors import ConfigError, RunFolderError
from fedcue.grid import options
from fedcue.grid.cells import Grid
from fedcue.grid.compare import asked_for, check_earlier_table
from fedcue.registry import METHODS, PAPER_METHODS


def test_methods_and_seeds_are_read_once_each() -> None:
    assert options.read_methods("pep, fedvpt,pep") == ("pep", "fedvpt")
    assert options.read_methods("all") == tuple(METHODS.names())
    assert {"fedrod", "lora", "local", "central", "ncm", "cue"} < set(options.read_methods("all"))
    assert options.read_methods(None) == options.read_methods("paper") == PAPER_METHODS
    assert options.read_methods("paper,cue") == (*PAPER_METHODS, "cue")
    assert options.read_methods(None, ["head"]) == ("head",)
    assert options.read_seeds("2,0,2", ()) == (2, 0)
    assert options.read_seeds(None, (1, 2)) == (1, 2)


@pytest.mark.parametrize("seeds", ["", "a", "0,-1", "0,,1", "1.5", "²"])
def test_bad_seeds_are_explained(seeds: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a number from 0\. Give some, as in --seeds 0,1,2"):
        options.read_seeds(seeds, ())


def test_unknown_methods_are_explained() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'fedvpt'"):
        options.read_methods("pep,fedvtp")


def test_values_are_typed() -> None:
    texts = ["a.b=0.1,3", "c=sgd,adam", "d=[1,2],[3]", "e=true,false", "f=none,0.5"]
    assert options.read_values(texts) == {
        "a.b": (0.1, 3), "c": ("sgd", "adam"), "d": ([1, 2], [3]), "e": (True, False), "f": ("none", 0.5),
    }  # fmt: skip


@pytest.mark.parametrize("texts", [["a"], ["=1"], ["a="], ["a=1", "a=2"]])
def test_bad_values_are_explained(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"key=value,value|given twice"):
        options.read_values(texts)


def test_the_grid_is_methods_by_values_by_seeds(tmp_path: Path) -> None:
    grid = Grid("default", {"rounds": 3}, ("pep", "head"), (0, 1), {"training.lr": (0.1, 0.2)})
    cells = grid.cells(tmp_path)
    assert len(cells) == 8
    assert [cell.folder.name for cell in cells[:3]] == [
        "pep-training.lr=0.1-seed0", "pep-training.lr=0.1-seed1", "pep-training.lr=0.2-seed0",
    ]  # fmt: skip
    assert {cell.config.rounds for cell in cells} == {3}
    assert cells[2].config.training.lr == 0.2
    assert cells[2].label == "pep training.lr=0.2 seed 0"


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
        Grid("default", overrides, ("pep", "head"), (0,), values).cells(tmp_path)


def test_folder_names_stay_in_the_folder_and_apart() -> None:
    names = {
        folder_name(method, {"k": value}, 0)
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
    table = options.compare_table(str(recipe))
    assert (table.methods, table.seeds, table.target) == (("pep",), (4,), 0.5)
    assert table.sweep == {"method.period": (1, 2), "rounds": (3,)}
    for wrong in ('seeds="a"', "target=2.0", "sed=[1]", "sweep={rounds=3}", "sweep={rounds=[]}"):
        recipe.write_text(f"[compare]\n{wrong}\n")
        with pytest.raises(ConfigError, match="compare"):
            options.compare_table(str(recipe))


# Variants


def variants(*texts: str, methods: str | None = None, **recipe: tuple[str, ...]) -> dict[str, Any]:
    table = options.CompareTable(variants=recipe)
    found = options.read_variants(texts, table, methods)
    return {method: list(map(dict, changes)) for method, changes in found.items()}


def test_variants_are_read_with_their_method_or_for_all() -> None:
    found = variants("pep: method.prior=uniform method.layers=[7, 8, 9]", "training.lr=0.5", "pep: rounds=3")
    assert found == {
        "pep": [{"method.prior": "uniform", "method.layers": [7, 8, 9]}, {"rounds": 3}],
        "": [{"training.lr": 0.5}],
    }


def test_variants_are_the_recipes_where_none_are_given() -> None:
    recipe = {"pep": ("rounds=1",), "head": ("rounds=2",), "all": ("rounds=3",)}
    assert variants(**recipe) == {"pep": [{"rounds": 1}], "head": [{"rounds": 2}], "": [{"rounds": 3}]}
    assert variants(methods="head", **recipe) == {"head": [{"rounds": 2}], "": [{"rounds": 3}]}
    assert variants("pep: rounds=9", **recipe) == {"pep": [{"rounds": 9}]}


@pytest.mark.parametrize(
    ("text", "message"),
    [("pep: ", "key=value"), ("pepp: rounds=1", "Did you mean 'pep'"), ("rounds", "key=value")],
)
def test_bad_variants_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variants(text)


def test_a_method_is_followed_by_its_variants(tmp_path: Path) -> None:
    found = {"head": ({"rounds": 2},), "pep": ({"rounds": 3},), "": ({"rounds": 4},)}
    grid = Grid("default", {}, ("pep",), (0,), {}, found)
    assert [(cell.method, cell.variant, cell.config.rounds) for cell in grid.cells(tmp_path)] == [
        ("pep", "", 12),
        ("pep", "rounds=4", 4),
        ("pep", "rounds=3", 3),
        ("head", "rounds=2", 2),
    ]
    with pytest.raises(ConfigError, match="seed= cannot be set in a grid"):
        Grid("default", {}, ("pep",), (0,), {}, {"pep": ({"seed": 2},)}).cells(tmp_path)


def test_none_leaves_the_variants(tmp_path: Path) -> None:
    (asked,) = asked_for(["default"], "none", "0", ["pep: rounds=3"])
    assert [(cell.method, cell.variant) for cell in asked.grid.cells(tmp_path)] == [("pep", "rounds=3")]
    with pytest.raises(ConfigError, match="--methods none leaves nothing to run"):
        asked_for(["default"], "none")


# Several recipes, and the table that was there before


def test_recipes_come_first_and_settings_are_for_all_of_them() -> None:
    asked = asked_for(["default", "cifar100-pathological", "rounds=3"], "head", "0,1", None, None)
    assert [(one.name, one.grid.overrides, one.target) for one in asked] == [
        ("default", {"rounds": 3}, 0.8),
        ("cifar100-pathological", {"rounds": 3}, 0.83),
    ]
    assert [one.name for one in asked_for(["rounds=3"])] == ["default"]
    assert asked_for(["default"], target=0.5)[0].target == 0.5


def test_two_recipes_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "default.toml").write_text('base = "default"\n')
    with pytest.raises(ConfigError, match="Two recipes are called 'default'"):
        asked_for(["default", str(tmp_path / "default.toml")])


def test_a_table_with_rows_that_would_be_lost_is_not_replaced(tmp_path: Path) -> None:
    cells = Grid("default", {}, ("pep", "head"), (0, 1), {}).cells(tmp_path)
    check_earlier_table(tmp_path, cells)
    rows = [{"method": "pep", "variant": "", "seeds": [0, 1]}, {"method": "head", "variant": "", "seeds": []}]
    (tmp_path / "compare.json").write_text(json.dumps({"rows": rows}))
    check_earlier_table(tmp_path, cells)
    for other in (cells[2:], cells[:1]):
        with pytest.raises(
            RunFolderError, match=r"a row that this command does not make \(pep seed [01]\).*--overwrite"
        ):
            check_earlier_table(tmp_path, other)
