"""Compare into a table: run what it does not hold yet, and add each run's row when it is done."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcue.after.retest import TEST_ONLY
from fedcue.config.layers import dump, resolve
from fedcue.config.recipes import read_recipe
from fedcue.config.scope import NOT_IN_LABELS, scope_of
from fedcue.config.settings import RunConfig
from fedcue.config.words import flat, folder_name, typed
from fedcue.grid.cells import Cell, Grid
from fedcue.grid.entries import read_entry
from fedcue.grid.execute import Watcher, run_grid
from fedcue.grid.table import Entry, RunTable, identity_of
from fedcue.grid.worker import Retest

_NOT_APART = ("evaluation.every",)
"""Settings that set runs apart and not what a row says of them: how often a run is tested on its way."""


def _settings_that_matter(config: RunConfig) -> dict[str, Any]:
    """Return every setting on which the result depends, by dotted key; recipe and seed are left out."""
    found = flat(dump(config))
    found["backbone.name"] = _backbone_name(found["backbone.name"])
    return {
        key: value
        for key, value in found.items()
        if scope_of(key) not in NOT_IN_LABELS and key not in _NOT_APART
    }


def differences(config: RunConfig, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that differ from the recipe's own for the same method, as typed.

    Those of a scale count, too: what the recipe says outside its scales is the measure.
    """
    own = _settings_that_matter(config)
    base = _settings_that_matter(resolve(recipe, {"method": own["method.name"]}, config.recipe))
    if recipe.get("precision") == "auto":  # another machine may settle it otherwise: a row says which it was
        del base["precision"]
    unusual = flat(config.model_dump(mode="json", exclude_defaults=True, serialize_as_any=True))
    found: dict[str, str] = {}
    for key in sorted({*own, *base}):
        name = f"{key.partition('.')[0]}.name"
        renamed = name in own and own[name] != base[name]
        same = own.get(key) == base.get(key)
        if renamed and key != name:
            same = key not in unusual  # an option of the new name at its default, or one of the old name
        if same or key == "method.name":
            continue
        found[key] = typed(own[key]) if key in own else "none"
    return found


def trained_alike(config: RunConfig) -> str:
    """Return a text that is equal for runs that train the same model and differ at most in its test."""
    own = _settings_that_matter(config)
    kept = {key: value for key, value in own.items() if key not in TEST_ONLY}
    in_loss = own.get("method.logit_prior") == "train+test"
    return json.dumps([config.recipe, config.seed, in_loss, kept], sort_keys=True, default=str)


def asked_at_test(config: RunConfig) -> list[str]:
    """Return the settings that matter at test only, as typed."""
    own = _settings_that_matter(config)
    return [f"{key}={typed(own[key])}" for key in TEST_ONLY if key in own]


def _backbone_name(name: str) -> str:
    """Return a backbone's name; that of a folder is its last part, wherever it lies."""
    return Path(name).name if "/" in name and Path(name).is_dir() else name


CONTROL = ("method.logit_prior=test",)
"""What a finished run is tested with besides: the client's log prior added to the logits."""


@dataclass(frozen=True)
class Wanted:
    """A cell and the columns that name it in the table."""

    cell: Cell
    names: Mapping[str, str]

    @property
    def control(self) -> Path | None:
        """Where the test with the log prior goes; none where the run has the prior already, or no labels'."""
        config = self.cell.config
        if config.method.logit_prior != "none" or config.evaluation.priors != "labels":
            return None
        return Path(f"{self.cell.folder}-log-prior")

    def entry(self) -> Entry:
        """Read what came of it."""
        return read_entry(self.cell.folder, self.names, self.control)


@dataclass(frozen=True)
class Trained:
    """A run that trains, and the cells that only test the same model otherwise."""

    first: Wanted
    others: tuple[Wanted, ...]

    @property
    def all(self) -> tuple[Wanted, ...]:
        """Every cell that is known when the run and its tests are done."""
        return self.first, *self.others

    def retests(self) -> list[Retest]:
        """Return the tests that follow the training."""
        found = [Retest(tuple(asked_at_test(w.cell.config)), w.cell.folder) for w in self.others]
        for wanted in self.all:
            if wanted.control is not None:
                found.append(Retest(CONTROL, wanted.control))
        return found

    def folders(self) -> list[Path]:
        """Return every folder it leaves."""
        return [self.first.cell.folder, *(test.folder for test in self.retests())]


@dataclass(frozen=True)
class TablePlan:
    """What a table is asked to hold, and what of it is missing."""

    table: RunTable
    wanted: tuple[Wanted, ...]
    missing: tuple[Trained, ...]
    keep_runs: bool

    def run(self, watcher: Watcher, at_once: int | None = None, overwrite: bool = False) -> dict[Path, str]:
        """Run what is missing; return what went wrong, by folder."""
        trained = {one.first.cell.folder: one for one in self.missing}
        cells = [one.first.cell for one in self.missing]
        tests = {folder: one.retests() for folder, one in trained.items()}
        watching = _Recording(watcher, self, trained)
        problems = run_grid(cells, watching, at_once=at_once, overwrite=overwrite, tests=tests)
        if not self.keep_runs:
            _remove_empty(work_folder(self.table))
        return problems

    def rows(self) -> list[Mapping[str, str]]:
        """Return the table's rows of the wanted cells, in the order in which they were asked for."""
        there = {identity_of(row): row for row in self.table.rows()}
        asked = dict.fromkeys(identity_of(wanted.names) for wanted in self.wanted)
        return [there[identity] for identity in asked if identity in there]

    def record(self, trained: Trained) -> None:
        """Add the rows of a run and its tests; remove its folders unless they are to be kept."""
        self.table.add([wanted.entry() for wanted in trained.all])
        if not self.keep_runs:
            for folder in trained.folders():
                shutil.rmtree(folder, ignore_errors=True)


def plan_table(
    table: RunTable, grids: Sequence[Grid], out: Path | None = None, *, again: bool = False
) -> TablePlan:
    """Find out what is missing from a table; ``again`` takes everything as missing.

    Runs are kept in ``out``; without it they lie beside the table while they go on and are then removed.
    """
    wanted = tuple(one for grid in grids for one in _wanted(grid, table, out, len(grids) > 1))
    there = set() if again else {identity_of(row) for row in table.rows()}
    groups: dict[str, list[Wanted]] = {}
    seen = set(there)
    for one in wanted:
        identity = identity_of(one.names)
        if identity not in seen:
            seen.add(identity)
            groups.setdefault(trained_alike(one.cell.config), []).append(one)
    missing = tuple(Trained(first, tuple(others)) for first, *others in groups.values())
    return TablePlan(table, wanted, missing, out is not None)


def work_folder(table: RunTable) -> Path:
    """Return where runs lie while they go on."""
    return table.path.with_suffix(".runs")


def _wanted(grid: Grid, table: RunTable, out: Path | None, several: bool) -> list[Wanted]:
    name, recipe = read_recipe(grid.recipe)
    place = out or work_folder(table)
    if several and out:
        place = out / name
    found = []
    for cell in grid.cells(place):
        names = {
            "run": folder_name(cell.method, cell.changes, cell.seed),
            "recipe": name,
            "method": cell.method,
            "variant": cell.variant,
            "seed": str(cell.seed),
            **differences(cell.config, recipe),
        }
        if out is None:  # runs of the same name with other settings do not meet there
            digest = hashlib.sha256(repr(identity_of(names)).encode()).hexdigest()[:8]
            cell = replace(cell, folder=place / f"{cell.folder.name}-{digest}")
        found.append(Wanted(cell, names))
    return found


class _Recording:
    """Watches a grid for the table: a run's rows are written when it and its tests are done."""

    def __init__(self, watcher: Watcher, plan: TablePlan, trained: Mapping[Path, Trained]) -> None:
        self.watcher, self.plan, self.trained = watcher, plan, trained

    def planned(self, cells: Sequence[Cell], todo: Sequence[Cell]) -> None:
        """Take the rows of what is done already."""
        left = {cell.folder for cell in todo}
        for cell in cells:
            if cell.folder not in left:
                self.plan.record(self.trained[cell.folder])
        there = self.plan.rows()
        self.watcher.planned([*(wanted.cell for wanted in self.plan.wanted[: len(there)]), *todo], todo)

    def began(self, cell: Cell) -> None:
        """Pass it on."""
        self.watcher.began(cell)

    def finished_round(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Pass it on."""
        self.watcher.finished_round(cell, record)

    def ended(self, cell: Cell, problem: str | None) -> None:
        """Write the rows of what is done, then pass it on."""
        if problem is None:
            self.plan.record(self.trained[cell.folder])
        self.watcher.ended(cell, problem)


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
