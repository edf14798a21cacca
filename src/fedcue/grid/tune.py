"""Choose settings on the clients' validation images: the same grid for every method, all candidates kept."""

from __future__ import annotations

import copy
import csv
import io
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w

from fedcue.config.recipes import merge, read_recipe
from fedcue.config.words import typed
from fedcue.errors import ConfigError, RunFolderError
from fedcue.foreign import STRANGE, expanded
from fedcue.grid.cells import Cell, Grid, Values, describe, product_of
from fedcue.grid.execute import finished
from fedcue.record.files import write_json, write_text
from fedcue.record.folder import read_summary
from fedcue.registry import METHODS

_BEFORE: Mapping[str, Any] = {"evaluation.every": 0, "snapshots": []}
"""What a candidate is not asked for, unless the command line does."""

EQUAL = 1e-9
"""Accuracies closer than this differ by rounding only."""

_FIXED = ("evaluation.on", "scale")
"""Settings that cannot be tried: all candidates share them."""

_KEPT = ("data", "partition", "heldout", "backbone")
"""Sections whose settings a tuned recipe keeps: what was chosen was chosen for them."""


@dataclass(frozen=True)
class Candidate:
    """One method with one choice of settings: its validation accuracy for each seed that finished."""

    method: str
    changes: Mapping[str, Any]
    accuracies: tuple[float, ...]

    @property
    def variant(self) -> str:
        """The settings as text, such as ``training.lr=0.1``."""
        return describe(self.changes)

    @property
    def mean(self) -> float | None:
        """Mean validation accuracy after the last round, over seeds."""
        return fmean(self.accuracies) if self.accuracies else None


@dataclass(frozen=True)
class Choice:
    """The best candidate of a method, and the settings of it that lie at the edge of the grid."""

    candidate: Candidate
    edges: tuple[str, ...]


def validation_grid(grid: Grid) -> Grid:
    """Return the grid with every run tested on validation images, never on test images."""
    if not grid.values:
        raise ConfigError(
            "Nothing to choose from. Give --grid key=value,value, such as training.lr=0.03,0.1."
        )
    if not grid.methods:
        raise ConfigError("--methods none leaves nothing to tune. Give methods, as in --methods pep,fedvpt.")
    for key in _FIXED:
        if key in grid.values:
            raise ConfigError(f"--grid {key}= is not possible: candidates are compared on validation images.")
    if grid.overrides.get("evaluation.on", "validation") != "validation":
        raise ConfigError("evaluation.on=test is not possible: settings are never chosen on test images.")
    overrides = {**_BEFORE, **grid.overrides, "evaluation.on": "validation"}
    return Grid(grid.recipe, overrides, grid.methods, grid.seeds, grid.values)


def read_candidates(grid: Grid, cells: Sequence[Cell]) -> list[Candidate]:
    """Return what came of every combination, in the order of the grid."""
    folders = finished(cells)
    return [
        Candidate(method, changes, tuple(_accuracies(folders[method, describe(changes)])))
        for method in grid.methods
        for changes in product_of(grid.values)
    ]


def untested(cells: Sequence[Cell]) -> dict[Path, str]:
    """Return the finished runs that say nothing, by folder, and why."""
    found = {}
    for folder in (folder for folders in finished(cells).values() for folder in folders):
        with _readable(folder):
            missing = read_summary(folder).get("untested", [])
            if missing:
                found[folder] = (
                    f"{len(missing)} clients could not be tested (client {missing[0]['client']}: "
                    f"{missing[0]['reason']}). Mend them, then repeat with --overwrite."
                )
    return found


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Say which run it is whose summary does not hold what it should."""
    try:
        yield
    except STRANGE as error:
        raise RunFolderError(
            f"{folder} is not a finished run that can be read ({type(error).__name__}: {error}). "
            "Delete the folder and run it again."
        ) from error


def _accuracies(folders: Iterable[Path]) -> Iterator[float]:
    """Yield what the runs reached; one that left clients untested says nothing."""
    for folder in folders:
        summary = read_summary(folder)
        if not summary.get("untested"):
            with _readable(folder):
                accuracy = float(summary["mean_accuracy"])
            yield accuracy


def choose(candidates: Sequence[Candidate], values: Values, seeds: int) -> dict[str, Choice]:
    """Return each method's best candidate (the first of equals) among those that finished for every seed."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        mean, before = candidate.mean, best.get(candidate.method)
        if mean is None or len(candidate.accuracies) < seeds:
            continue
        if before is None or before.mean is None or mean > before.mean + EQUAL:
            best[candidate.method] = candidate
    return {method: Choice(candidate, edges(candidate.changes, values)) for method, candidate in best.items()}


def edges(changes: Mapping[str, Any], values: Values) -> tuple[str, ...]:
    """Return the chosen settings that are the smallest or largest number of their list."""
    found = []
    for key, chosen in changes.items():
        numbers = [
            value for value in values[key] if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        if len(numbers) == len(values[key]) > 1 and chosen in (min(numbers), max(numbers)):
            found.append(f"{key}={typed(chosen)}")
    return tuple(found)


def write_candidates(
    out: Path, grid: Grid, candidates: Sequence[Candidate], choices: Mapping[str, Choice]
) -> None:
    """Write every candidate to ``trials.json`` and ``trials.csv``."""
    chosen = {id(choice.candidate) for choice in choices.values()}
    rows = [
        {
            "method": candidate.method,
            **candidate.changes,
            "validation_accuracy": candidate.mean,
            "accuracies": list(candidate.accuracies),
            "chosen": id(candidate) in chosen,
        }
        for candidate in candidates
    ]
    at_edge = {method: list(choice.edges) for method, choice in choices.items() if choice.edges}
    write_json(
        out / "trials.json", {"seeds": list(grid.seeds), "trials": rows, "at_the_edge_of_the_grid": at_edge}
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        texts = {
            **row,
            "accuracies": " ".join(map(repr, row["accuracies"])),
            "chosen": typed(row["chosen"]),
        }
        writer.writerow("" if value is None else typed(value) for value in texts.values())
    write_text(out / "trials.csv", text.getvalue())


def write_recipe(out: Path, grid: Grid, choices: Mapping[str, Choice]) -> Path:
    """Write ``tuned.toml``: the recipe with each method's choice; line 1 is the command that runs it.

    What was chosen at a scale holds at that scale. Data and backbone that all trials had are kept.
    """
    _, settings = read_recipe(grid.recipe)
    tuned = copy.deepcopy(settings)
    place = tuned["scale"][grid.overrides["scale"]] if "scale" in grid.overrides else tuned
    for key in ("data", "partition", "backbone"):
        if isinstance(place.get(key), str):
            place[key] = {"name": place[key]}
    merge(place, _kept(grid.overrides))
    tables = dict(place.get("per_method", {}))
    profile = {key: value for key, value in grid.overrides.items() if key == "profile"}
    for method, choice in choices.items():
        before: dict[str, Any] = {}
        for table in (tuned, place):
            merge(before, table.get("per_method", {}).get(method, {}))
        everywhere = [table.get("training", {}) for table in (tuned, place, before)]
        named = {key for table in everywhere for key in table}
        tables[method] = _table(method, {**profile, **choice.candidate.changes}, before, named)
    place["per_method"] = tables
    path = out / "tuned.toml"
    left_out = ("evaluation.on", "profile")  # the latter stands in the tables
    given = [f"{key}={typed(value)}" for key, value in grid.overrides.items() if key not in left_out]
    command = shlex.join(["fedcue", "compare", str(path), "--methods", ",".join(choices), *given])
    write_text(path, f"# {command}\n{tomli_w.dumps(tuned)}")
    return path


def _kept(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides that say which images there are, who holds them and what sees them, names first.

    A partition that was named was meant: it shares out the images of clients that the data has, too.
    """
    found = {key: value for key, value in overrides.items() if key.partition(".")[0] in _KEPT}
    if "data.root" in found:
        found["data.root"] = str(expanded(found["data.root"]).absolute())
    for key in {"backbone", "backbone.name"} & set(found):
        if (place := expanded(found[key])).exists():  # a folder or a file, not a name of the hub
            found[key] = str(place.absolute())
    if {"partition", "partition.name"} & set(found):
        found.setdefault("partition.own_clients", "mix")
    return dict(sorted(found.items(), key=lambda item: item[0].removesuffix(".name") not in _KEPT))


def _table(
    method: str, changes: Mapping[str, Any], before: Mapping[str, Any], given: Collection[str]
) -> dict[str, Any]:
    """Return a method's table: what the recipe said, a chosen profile, then what was chosen.

    TOML has no word for none: a rate that is ``given`` in the recipe, and not in a profile, becomes ``lr``.
    """
    table: dict[str, Any] = {}
    merge(table, before)
    if "profile" in changes:
        merge(table, getattr(METHODS.get(method), "profiles", {})[changes["profile"]])
    merge(table, {key: value for key, value in changes.items() if key != "profile"})
    if "training" in table:
        own = table["training"]
        rates = {key: own["lr"] for key, value in own.items() if value is None and key in given}
        table["training"] = {key: value for key, value in {**own, **rates}.items() if value is not None}
    return table
