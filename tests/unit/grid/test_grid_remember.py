"""``compare --table``: what the table holds is not run, what was run is in the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from handmade_runs import write_run

from fedcue.config.layers import load
from fedcue.errors import RunFolderError
from fedcue.grid.cells import Cell, Grid
from fedcue.grid.entries import read_entry
from fedcue.grid.remember import TablePlan, plan_table, work_folder
from fedcue.grid.table import RunTable


class Watching:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.todo: list[str] = []

    def planned(self, cells: Sequence[Cell], todo: Sequence[Cell]) -> None:
        self.all, self.todo = ([cell.label for cell in some] for some in (cells, todo))

    def began(self, cell: Cell) -> None: ...

    def finished_round(self, cell: Cell, record: Any) -> None: ...

    def ended(self, cell: Cell, problem: str | None) -> None: ...


def grid(*methods: str, seeds: tuple[int, ...] = (0,), **more: Any) -> Grid:
    return Grid("default", {"rounds": 2}, methods, seeds, {}, **more)


@pytest.fixture
def table(tmp_path: Path) -> RunTable:
    return RunTable(tmp_path / "t.csv")


def do(plan: TablePlan) -> None:
    """Leave behind what the runs of a plan would, then let the plan find it."""
    for trained in plan.missing:
        for number, wanted in enumerate(trained.all):
            write_run(wanted.cell.folder, wanted.cell.config, 0.5 - number / 10)
            if wanted.control is not None:
                again = {"tested_again": {"of": "run", "seconds": 1.5}}
                write_run(wanted.control, wanted.cell.config, 0.75, 0.625, **again)
    assert plan.run(Watching()) == {}


def test_a_run_leaves_a_row_with_its_control_and_a_curve_and_no_folder(table: RunTable) -> None:
    plan = plan_table(table, [grid("fedvpt")])
    do(plan)
    (row,) = plan.rows()
    expected = {
        "run": "fedvpt-seed0", "recipe": "default", "method": "fedvpt", "variant": "", "seed": "0", "rounds": "2",
        "mean": "0.5", "worst": "0.25", "percentile_5": "0.125", "heldout_mean": "0.4", "log_prior_mean": "0.75",
        "log_prior_heldout_mean": "0.625", "domain:sketch": "0.25", "domain:sketch:pooled": "0.125",
        "upload_floats": "20", "warm_up_floats": "100", "visits": "4", "seconds": "2.5", "commit": "abc",
        "clients": "0:4/8 1:/4 7:1/3h", "log_prior_clients": "0:6/8 1:/4 7:1/3h",
    }  # fmt: skip
    assert {column: row[column] for column in expected} == expected
    assert table.curves() == {
        "fedvpt-seed0": [
            {"run": "fedvpt-seed0", "round": "2", "mean": "0.5", "worst": "0.25", "heldout": "0.4",
             "train_loss": "1.5", "floats": "160", "bytes": "640"},
        ]
    }  # fmt: skip
    assert not work_folder(table).exists()


def test_a_curve_is_without_what_clients_trained_for_the_last_test_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "run", load("default", ["method=pfedpg", "rounds=2"]))
    metrics = tmp_path / "run" / "metrics.jsonl"
    first, last = map(json.loads, metrics.read_text().splitlines())
    last |= {"unadapted_mean_accuracy": 0.3, "unadapted_worst_accuracy": 0.1}
    metrics.write_text(f"{json.dumps(first)}\n{json.dumps(last)}\n")
    (point,) = read_entry(tmp_path / "run", {"run": "r"}).curve
    assert (point["mean"], point["worst"], point["heldout"]) == ("0.3", "0.1", "0.4")


def test_only_what_is_missing_is_run(table: RunTable) -> None:
    do(plan_table(table, [grid("fedvpt", seeds=(0, 1))]))
    again = plan_table(table, [grid("head", "fedvpt", seeds=(1, 2))])
    assert [one.first.cell.label for one in again.missing] == ["head seed 1", "head seed 2", "fedvpt seed 2"]
    watching = Watching()
    nothing = plan_table(table, [grid("fedvpt", seeds=(0, 1))])
    assert nothing.run(watching) == {}
    assert (watching.todo, len(watching.all)) == ([], 2)
    assert [row["seed"] for row in nothing.rows()] == ["0", "1"]
    assert len(plan_table(table, [grid("fedvpt", seeds=(0, 1))], again=True).missing) == 2


def test_other_places_and_workers_are_the_same_cell_and_other_settings_are_not(table: RunTable) -> None:
    do(plan_table(table, [grid("fedvpt")]))
    for key, value, missing in (("workers", 7, 0), ("cache.limit_mb", 7, 0), ("training.lr", 7.0, 1)):
        other = Grid("default", {"rounds": 2, key: value}, ("fedvpt",), (0,), {})
        assert len(plan_table(table, [other]).missing) == missing


def test_a_variant_that_only_tests_otherwise_is_not_trained(table: RunTable) -> None:
    variants = {"cue": ({"evaluation.priors": "uniform"}, {"training.lr": 0.5})}
    plan = plan_table(table, [grid("cue", variants=variants)])
    assert [[wanted.cell.variant for wanted in one.all] for one in plan.missing] == [
        ["", "evaluation.priors=uniform"],
        ["training.lr=0.5"],
    ]
    (test,) = plan.missing[0].retests()
    assert test.changes == (
        "method.logit_prior=test",
        "evaluation.priors=uniform",
        "evaluation.temperature=1.25",
        "evaluation.labelled=0",
    )
    do(plan)
    assert [(row["variant"], row["mean"], row.get("log_prior_mean", "")) for row in plan.rows()] == [
        ("", "0.5", ""),
        ("evaluation.priors=uniform", "0.4", ""),
        ("training.lr=0.5", "0.5", ""),
    ]
    alone = plan_table(table, [grid("cue", variants={"cue": ({"evaluation.priors": "em"},)})])
    assert [one.first.cell.variant for one in alone.missing] == ["evaluation.priors=em"]


def test_runs_are_kept_where_a_folder_is_given(table: RunTable, tmp_path: Path) -> None:
    plan = plan_table(table, [grid("fedvpt")], tmp_path / "out")
    do(plan)
    assert (tmp_path / "out" / "fedvpt-seed0" / "summary.json").is_file()
    assert len(plan.rows()) == 1


def test_a_run_that_was_done_but_not_yet_in_the_table_is_taken(table: RunTable) -> None:
    plan = plan_table(table, [grid("fedvpt")])
    (wanted,) = plan.wanted
    write_run(wanted.cell.folder, wanted.cell.config)
    assert wanted.control is not None
    write_run(wanted.control, wanted.cell.config, 0.75)
    watching = Watching()
    assert plan.run(watching) == {}
    assert watching.todo == []
    assert len(table.rows()) == 1


def test_runs_with_other_settings_do_not_meet_in_the_working_folder(table: RunTable) -> None:
    one, other = (
        plan_table(table, [Grid("default", {"rounds": rounds}, ("head",), (0,), {})]).wanted[0].cell.folder
        for rounds in (2, 3)
    )
    assert one != other


def test_a_damaged_run_is_named(table: RunTable) -> None:
    plan = plan_table(table, [grid("fedvpt")])
    (wanted,) = plan.wanted
    assert wanted.control is not None
    for folder in (wanted.cell.folder, wanted.control):
        write_run(folder, wanted.cell.config)
    (wanted.cell.folder / "clients.csv").write_text("id\n1\n")
    with pytest.raises(RunFolderError, match="is not a finished run that can be read"):
        plan.run(Watching())
    assert table.rows() == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("clients.csv", "id,test_accuracy,test_size,heldout\n1,inf,3,false\n"),
        ("clients.csv", "id\n" + "a" * 2**25),
        ("summary.json", '{"domains": [1]}'),
        ("config.toml", "environment = 3\n"),
    ],
)
def test_whatever_a_runs_files_hold_it_is_read_or_refused(tmp_path: Path, name: str, content: str) -> None:
    write_run(tmp_path / "run", load("default", []))
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(RunFolderError, match="is not a finished run that can be read"):
        read_entry(tmp_path / "run", {})
