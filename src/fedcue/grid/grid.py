"""A grid of runs on one recipe: methods x changed settings x seeds, each with a folder of its own."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fedcue.config.layers import parse, resolve
from fedcue.config.recipes import read_recipe
from fedcue.config.settings import RunConfig
from fedcue.errors import ConfigError
from fedcue.registry import METHODS, PAPER_METHODS, Options

Values = Mapping[str, tuple[Any, ...]]
"""Settings by dotted key, each with the values it takes in turn."""

RESERVED = ("method", "method.name", "seed")


class CompareTable(Options):
    """A recipe's ``[compare]`` table: what is run when the command line does not say."""

    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    target: float = Field(default=0.8, gt=0, le=1)
    sweep: dict[str, Any] = {}


@dataclass(frozen=True)
class Job:
    """One run of a grid."""

    method: str
    changes: Mapping[str, Any]
    seed: int
    config: RunConfig
    folder: Path

    @property
    def variant(self) -> str:
        """The changed settings as text, such as ``method.temperature=0.1``."""
        return describe(self.changes)

    @property
    def label(self) -> str:
        """What people call this run."""
        return " ".join(filter(None, [self.method, self.variant, f"seed {self.seed}"]))


@dataclass(frozen=True)
class Grid:
    """Which methods, changes and seeds are run on which recipe."""

    recipe: str
    overrides: Mapping[str, Any]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Values

    def jobs(self, out: Path) -> list[Job]:
        """Return every run in order; raise one error with all that is wrong with any of them."""
        name, settings = read_recipe(self.recipe)
        for key in (*self.overrides, *self.values):
            if key in RESERVED:
                raise ConfigError(f"{key}= cannot be set in a grid. Give --methods and --seeds instead.")
        jobs: list[Job] = []
        problems: dict[str, str] = {}
        for method, changes, seed in itertools.product(self.methods, product_of(self.values), self.seeds):
            overrides = {"method": method, **self.overrides, **changes, "seed": seed}
            folder = out / folder_name(method, changes, seed)
            try:
                jobs.append(Job(method, changes, seed, resolve(settings, overrides, name), folder))
            except ConfigError as error:
                problems.setdefault(str(error), method)
        if problems:
            raise ConfigError("\n".join(f"{method}: {problem}" for problem, method in problems.items()))
        return jobs


def compare_table(recipe: str) -> CompareTable:
    """Read and check a recipe's ``[compare]`` table."""
    _, settings = read_recipe(recipe)
    try:
        table = CompareTable.model_validate(settings.get("compare", {}))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
        )
        raise ConfigError(
            f"[compare] of recipe {recipe!r} is not usable ({wrong}). It takes methods = [NAMES], "
            "seeds = [NUMBERS], target = a share up to 1 and a table sweep of key = [VALUES]."
        ) from error
    return table.model_copy(update={"sweep": dict(_flatten(table.sweep))})


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, tuple[Any, ...]]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value:
            yield prefix + key, tuple(value)
        else:
            raise ConfigError(
                f"compare.sweep.{prefix}{key}={value!r}: give a list of values, such as [1, 5]."
            )


def read_methods(text: str | None, default: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the methods of ``--methods all,a,b``; without it those of the recipe, or all.

    All are the paper's and those installed by other packages; our own are named beside it: ``all,ncm``.
    """
    given = list(default) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    all_ = (*PAPER_METHODS, *(name for name in METHODS.names() if name not in METHODS.builtin))
    names = [name for one in given or ["all"] for name in (all_ if one == "all" else (one,))]
    for name in names:
        METHODS.get(name)
    return tuple(dict.fromkeys(names))


def read_seeds(text: str | None, default: Sequence[int]) -> tuple[int, ...]:
    """Return the seeds of ``--seeds 0,1,2``."""
    if text is None:
        return tuple(dict.fromkeys(default))
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"\d{1,9}", part, re.ASCII):
            raise ConfigError(
                f"--seeds {text}: {part!r} is not a number from 0. Give some, as in --seeds 0,1,2."
            )
    return tuple(dict.fromkeys(map(int, parts)))


def read_values(texts: Iterable[str]) -> Values:
    """Return the settings of ``key=v1,v2`` texts; lists keep their brackets: ``key=[1,2],[3]``."""
    values: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, equals, listed = (part.strip() for part in text.partition("="))
        if not (key and equals and listed):
            raise ConfigError(f"{text!r} is not of the form key=value,value, such as training.lr=0.03,0.1.")
        if key in values:
            raise ConfigError(f"{key} is given twice. Give all its values at once: {key}=value,value.")
        try:
            found = tomllib.loads(f"values = [{listed}]")["values"]
        except (tomllib.TOMLDecodeError, RecursionError):
            found = [parse([f"{key}={part.strip()}"])[key] for part in listed.split(",")]
        values[key] = tuple(found)
    return values


def product_of(values: Values) -> list[dict[str, Any]]:
    """Return every combination of the values, the last key changing fastest."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def describe(changes: Mapping[str, Any]) -> str:
    """Return settings as text: ``key=value key=value``."""
    return " ".join(f"{key}={show(value)}" for key, value in changes.items())


def show(value: Any) -> str:
    """Return a setting's value as it would be typed."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def folder_name(method: str, changes: Mapping[str, Any], seed: int) -> str:
    """Return a run's folder: letters, digits and ``._=+-`` only; a digest where that loses something."""
    whole = "-".join([method, *(f"{key}={show(value)}" for key, value in changes.items())])
    plain = re.sub(r"[^A-Za-z0-9._=+-]+", "_", whole).lstrip(".")[:100]
    if plain != whole:
        plain += "-" + hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{plain}-seed{seed}"
