"""A grid of runs on one recipe: methods x changed settings x seeds, each with a folder of its own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcue.config import read_recipe, resolve
from fedcue.errors import ConfigError
from fedcue.record.names import describe, folder_name
from fedcue.settings import RunConfig

Values = Mapping[str, tuple[Any, ...]]
"""Settings by dotted key, each with the values it takes in turn."""

RESERVED = ("method", "method.name", "seed")


@dataclass(frozen=True)
class Cell:
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

    def cells(self, out: Path) -> list[Cell]:
        """Return every run in order; raise one error with all that is wrong with any of them."""
        name, settings = read_recipe(self.recipe)
        for key in (*self.overrides, *self.values):
            if key in RESERVED:
                raise ConfigError(f"{key}= cannot be set in a grid. Give --methods and --seeds instead.")
        cells: list[Cell] = []
        problems: dict[str, str] = {}
        for method, changes, seed in itertools.product(self.methods, product_of(self.values), self.seeds):
            overrides = {"method": method, **self.overrides, **changes, "seed": seed}
            folder = out / folder_name(method, changes, seed)
            try:
                cells.append(Cell(method, changes, seed, resolve(settings, overrides, name), folder))
            except ConfigError as error:
                problems.setdefault(str(error), method)
        if problems:
            raise ConfigError("\n".join(f"{method}: {problem}" for problem, method in problems.items()))
        return cells


def product_of(values: Values) -> list[dict[str, Any]]:
    """Return every combination of the values, the last key changing fastest."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
