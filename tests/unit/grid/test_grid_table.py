"""The table that remembers: rows are found again, added whole, and never lost."""

from __future__ import annotations

import errno
import os
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcue.errors import CannotWrite, RunFolderError
from fedcue.grid.table import KEYS, Entry, RunTable, identity_of, settings_of


def row(method: str = "pep", seed: int = 0, **more: str) -> dict[str, str]:
    names = {"run": f"{method}-seed{seed}", "recipe": "r", "method": method, "variant": "", "seed": str(seed)}
    return {**names, "mean": "0.5", **more}


def test_a_row_is_its_recipe_method_seed_and_settings_and_not_its_numbers() -> None:
    first = row(mean="0.5", commit="a", rounds="3")
    assert identity_of(first) == identity_of({**first, "mean": "0.7", "commit": "b", "training.lr": ""})
    for column, value in {
        "recipe": "s",
        "method": "head",
        "seed": "1",
        "rounds": "4",
        "training.lr": "1",
    }.items():
        assert identity_of(first) != identity_of({**first, column: value})
    assert settings_of({**first, "domain:x": "1", "log_prior_mean": "1", "clients": "1"}) == {"rounds": "3"}


def test_rows_are_added_read_again_and_replaced_in_place(tmp_path: Path) -> None:
    table = RunTable(tmp_path / "new" / "t.csv")
    assert table.rows() == []
    table.add([Entry(row(), ({"round": "1", "mean": "0.1"},))])
    table.add([Entry(row("head", **{"training.lr": "0.1"}), ({"round": "1", "mean": "0.2"},))])
    table.add([Entry(row(mean="0.9"), ({"round": "2", "mean": "0.9"},))])
    assert [(one["method"], one["mean"], one["training.lr"]) for one in table.rows()] == [
        ("pep", "0.9", ""),
        ("head", "0.5", "0.1"),
    ]
    assert {name: [point["round"] for point in points] for name, points in table.curves().items()} == {
        "pep-seed0": ["2"],
        "head-seed0": ["1"],
    }
    assert sorted(path.name for path in table.path.parent.iterdir()) == ["t.csv", "t.curves.csv"]


def test_runs_of_one_name_and_other_settings_are_told_apart(tmp_path: Path) -> None:
    table = RunTable(tmp_path / "t.csv")
    for rounds in ("1", "2"):
        table.add([Entry(row(rounds=rounds), ({"round": rounds},))])
    assert [one["run"] for one in table.rows()] == ["pep-seed0", "pep-seed0~2"]
    assert [points[0]["round"] for points in table.curves().values()] == ["1", "2"]


def test_a_kill_while_writing_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = RunTable(tmp_path / "t.csv")
    table.add([Entry(row(), ({"round": "1"},))])
    before = table.path.read_bytes()
    replace = os.replace

    def killed(aside: Path, path: Path) -> None:
        if path == table.path:
            raise KeyboardInterrupt
        replace(aside, path)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        table.add([Entry(row("head"), ({"round": "1"},))])
    assert table.path.read_bytes() == before
    monkeypatch.undo()
    table.add([Entry(row("head"), ({"round": "1"},))])
    assert [one["method"] for one in table.rows()] == ["pep", "head"]
    assert [len(points) for points in table.curves().values()] == [1, 1]


def test_a_full_disk_leaves_the_rows_and_curves_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, sync, synced = RunTable(tmp_path / "t.csv"), os.fsync, []
    table.add([Entry(row(), ({"round": "1"},))])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotWrite, match=r"t\.csv: No space left on device\. Free some space, or give"):
        table.add([Entry(row(), ({"round": "1"}, {"round": "2"}))])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def add_some(path: Path, method: str) -> None:
    for seed in range(10):
        RunTable(path).add([Entry(row(method, seed), ({"round": "1"},))])


def test_two_processes_can_add_to_one_table(tmp_path: Path) -> None:
    context = get_context("fork")
    both = [context.Process(target=add_some, args=(tmp_path / "t.csv", name)) for name in ("pep", "head")]
    for process in both:
        process.start()
    for process in both:
        process.join()
    table = RunTable(tmp_path / "t.csv")
    assert len(table.rows()) == len(table.curves()) == 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "is not a table of runs .*'run'"),
        ("", "is not a table of runs"),
        ("run,recipe,method,variant,seed,seed\n1,2,3,4,5,6\n", "is not a table of runs"),
        ("run,recipe,method,variant,seed\n1,2,3\n", "row 2 is not as long as the first"),
        ("run,recipe,method,variant,seed\n1,2,3,4,5,6\n", "row 2 is not as long as the first"),
        ('run,recipe,method,variant,seed\n1,"2\n', "cannot be read"),
        ("run,\xff", "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_refused_and_left_alone(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RunFolderError, match=message):
        RunTable(path).add([Entry(row())])
    assert path.read_bytes() == text.encode("latin-1")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.sampled_from('runecpmthodvaisd,"\n\r\0;x1'), max_size=60))
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    for begin in ("", "run,recipe,method,variant,seed\n"):
        path.write_text(begin + text, newline="")
        try:
            rows = RunTable(path).rows()
        except RunFolderError:
            continue
        assert all(set(KEYS) <= set(row) for row in rows)
