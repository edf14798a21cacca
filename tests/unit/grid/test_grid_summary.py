"""What is printed of a table: averages over seeds by kind of method, and the time that runs take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedcue.config.layers import load
from fedcue.grid import execute
from fedcue.grid.cells import Cell
from fedcue.grid.summary import group_of, lines_of, place_of, texts_of
from fedcue.registry import METHODS


def row(method: str, seed: int = 0, mean: float = 0.5, recipe: str = "r", **more: str) -> dict[str, str]:
    names = {"run": "x", "recipe": recipe, "method": method, "variant": "", "seed": str(seed)}
    return {**names, "mean": str(mean), "worst": "0.25", "seconds": "10", **more}


def test_seeds_are_averaged_and_kinds_stand_together() -> None:
    rows = [row("cue"), row("pep", 0, 0.5), row("pep", 1, 0.7), row("ncm"), row("my.own:Method"), row("ppt")]
    headings, lines = texts_of(lines_of(rows))
    assert [line[:3] for line in lines] == [
        ["no training", "ncm", "1"],
        ["global", "pep", "2"],
        ["personalised", "ppt", "1"],
        ["ours", "cue", "1"],
        ["others", "my.own:Method", "1"],
    ]
    pep = dict(zip(headings, lines[1], strict=True))
    assert (pep["mean"], pep["worst"], pep["held-out"], pep["seconds"]) == ("60.0 ± 14.1", "25.0", "–", "10")


def test_rows_with_other_settings_are_lines_of_their_own() -> None:
    rows = [row("pep", 0, rounds="3"), row("pep", 1, rounds="4"), row("pep", 1, rounds="3")]
    assert [len(line.rows) for line in lines_of(rows)] == [2, 1]


def test_a_measure_that_some_seeds_lack_is_not_averaged() -> None:
    rows = [row("pep", 0, log_prior_mean="0.9"), row("pep", 1)]
    (line,) = lines_of(rows)
    assert line.percent("log_prior_mean") == "–"


def test_accuracies_without_a_last_adaptation_have_a_column_where_there_are_any() -> None:
    headings, lines = texts_of(lines_of([row("head"), row("pfedpg", unadapted_mean="0.25")]))
    assert [dict(zip(headings, line, strict=True))["mean, not adapted"] for line in lines] == ["–", "25.0"]
    assert "mean, not adapted" not in texts_of(lines_of([row("head")]))[0]


def test_several_recipes_are_named_where_they_begin() -> None:
    headings, lines = texts_of(
        lines_of([row("pep", recipe="b"), row("head", recipe="b"), row("pep", recipe="a")])
    )
    assert headings[0] == "recipe"
    assert [line[:3] for line in lines] == [["b", "global", "head"], ["", "", "pep"], ["a", "global", "pep"]]


@pytest.mark.parametrize("method", METHODS.builtin)
def test_every_method_of_the_package_has_a_kind(method: str) -> None:
    assert group_of(method) != "others"
    assert place_of(method) < place_of("a.method:FromOutside")


def test_runs_that_differ_in_the_seed_take_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, float]] = []

    def plan(config: object, gflops: float) -> SimpleNamespace:
        asked.append((config.method.name, config.workers, gflops))  # type: ignore[attr-defined]
        return SimpleNamespace(seconds=7.0 if config.method.name == "head" else 3.0)  # type: ignore[attr-defined]

    monkeypatch.setattr(execute, "plan", plan)
    monkeypatch.setattr(execute, "matmul_gflops", {"float32": 50.0, "bfloat16": 200.0}.__getitem__)
    cells = [
        Cell(
            method,
            {},
            seed,
            load("default", [f"method={method}", f"seed={seed}", f"precision={precision}"]),
            Path(f"{method}{seed}"),
        )
        for method, precision in (("head", "float32"), ("fedvpt", "bfloat16"))
        for seed in (0, 1)
    ]
    assert execute.seconds_of(cells) == [7.0, 7.0, 3.0, 3.0]
    assert asked == [("head", 1, 50.0), ("fedvpt", 1, 200.0)]
    assert execute.seconds_of([]) == []
