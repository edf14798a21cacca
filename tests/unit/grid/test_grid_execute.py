"""What lies in a run's folder decides what is done: nothing, going on, running, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedcue.config.layers import dump, load
from fedcue.errors import RunFolderError
from fedcue.grid import execute, worker
from fedcue.grid.cells import Cell
from fedcue.grid.execute import difference, run_grid, state_of


class Recorder:
    def __init__(self) -> None:
        self.todo: list[str] = []

    def planned(self, cells: Any, todo: Any) -> None:
        self.todo = [cell.label for cell in todo]

    def began(self, cell: Cell) -> None: ...

    def finished_round(self, cell: Cell, record: Any) -> None: ...

    def ended(self, cell: Cell, problem: str | None) -> None: ...


def make_cell(folder: Path, *overrides: str) -> Cell:
    return Cell("pep", {}, 0, load("default", overrides), folder)


def test_a_folder_is_new_stopped_finished_or_another_run(tmp_path: Path) -> None:
    cell = make_cell(tmp_path / "run")
    assert state_of(cell) == "new"
    cell.folder.mkdir()
    (cell.folder / ".lock").touch()
    assert state_of(cell) == "new"
    settings = {**dump(cell.config), "workers": 7, "environment": {"commit": "another"}}
    (cell.folder / "config.toml").write_text(tomli_w.dumps(settings))
    assert state_of(cell) == "stopped"
    (cell.folder / "summary.json").write_text("{")
    assert state_of(cell) == "stopped"
    (cell.folder / "summary.json").write_text("{}")
    assert state_of(cell) == "finished"
    other = make_cell(cell.folder, "training.lr=0.5")
    assert state_of(other) == "other"
    assert difference(other) == "there training.lr=0.1, asked for training.lr=0.5"
    (cell.folder / "config.toml").unlink()
    assert state_of(cell) == "other"


def test_finished_runs_are_not_run_and_other_runs_are_refused(tmp_path: Path) -> None:
    cell = make_cell(tmp_path / "run")
    cell.folder.mkdir()
    (cell.folder / "config.toml").write_text(tomli_w.dumps(dump(cell.config)))
    (cell.folder / "summary.json").write_text("{}")
    watcher = Recorder()
    assert run_grid([cell], watcher) == {}
    assert watcher.todo == []
    with pytest.raises(
        RunFolderError, match=rf"there rounds={cell.config.rounds}, asked for rounds=3.*--overwrite"
    ):
        run_grid([make_cell(cell.folder, "rounds=3")], watcher)


def test_an_unexpected_failure_is_told_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(worker, "run", fail)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    ours, theirs = Pipe(duplex=False)
    worker.work(worker.Task(dump(load()), tmp_path / "run", "new"), theirs)
    log = tmp_path / "run.error.txt"
    assert ours.recv() == ("end", f"ZeroDivisionError: no (details in {log})")
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(("runs", "room", "at_once", "each"), [(2, 8, 2, 4), (8, 8, 8, 1), (9, 3, 3, 1)])
def test_runs_are_spread_over_a_cluster_before_the_clients_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, room: int, at_once: int, each: int
) -> None:
    given: list[tuple[int, Any]] = []

    def keep(planned: Any, at_once: int, watcher: Any) -> dict[Path, str]:
        given.extend((at_once, task) for _, task in planned)
        return {}

    @contextmanager
    def cluster(cells: Any) -> Iterator[execute.Place]:
        yield execute.Place(room, "127.0.0.1:6379")

    monkeypatch.setattr(execute, "place_for", cluster)
    monkeypatch.setattr(execute, "_run_all", keep)
    cells = [make_cell(tmp_path / str(number), f"seed={number}", "engine=ray") for number in range(runs)]
    run_grid(cells, Recorder())
    assert {count for count, _ in given} == {at_once}
    assert {task.settings["workers"] for _, task in given} == {each}
    assert {task.cluster for _, task in given} == {"127.0.0.1:6379"}
    assert "address" not in given[0][1].settings["engine"]
