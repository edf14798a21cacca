"""A grid of runs on one recipe: methods and their variants x changed settings x seeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcue.config.layers import resolve
from fedcue.config.recipes import read_recipe
from fedcue.config.settings import RunConfig
from fedcue.config.words import folder_name, typed
from fedcue.errors import ConfigError

Values = Mapping[str, tuple[Any, ...]]
"""Settings by dotted key, each with the values it takes in turn."""

Variants = Mapping[str, tuple[Mapping[str, Any], ...]]
"""By method (or by ``ALL``) the changed settings of each of its variants."""

ALL = ""
"""Stands for every method of a grid."""

_RESERVED = ("method", "method.name", "seed")
"""Settings that a grid sets itself."""


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
        """The run's name for readers."""
        return " ".join(filter(None, [self.method, self.variant, f"seed {self.seed}"]))


@dataclass(frozen=True)
class Grid:
    """Which methods, variants, changes and seeds are run on which recipe."""

    recipe: str
    overrides: Mapping[str, Any]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Values
    variants: Variants = field(default_factory=dict)

    def cells(self, out: Path) -> list[Cell]:
        """Return every run in order; raise one error with all that is wrong with any of them."""
        name, settings = read_recipe(self.recipe)
        for key in self._given():
            if key in _RESERVED:
                raise ConfigError(f"{key}= cannot be set in a grid. Give --methods and --seeds instead.")
        cells: list[Cell] = []
        problems: dict[str, str] = {}
        for method, changes in self._combinations():
            for seed in self.seeds:
                overrides = {"method": method, **self.overrides, **changes, "seed": seed}
                folder = out / folder_name(method, changes, seed)
                try:
                    cells.append(Cell(method, changes, seed, resolve(settings, overrides, name), folder))
                except ConfigError as error:
                    problems.setdefault(str(error), method)
        if problems:
            raise ConfigError("\n".join(f"{method}: {problem}" for problem, method in problems.items()))
        return cells

    def _given(self) -> Iterator[str]:
        """Yield the keys that are set for the grid."""
        yield from (*self.overrides, *self.values)
        for variants in self.variants.values():
            yield from (key for changes in variants for key in changes)

    def _combinations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each method with its changed settings: as it is, then its variants."""
        named = (method for method in self.variants if method != ALL)
        for method in dict.fromkeys((*self.methods, *named)):
            own: list[Mapping[str, Any]] = []
            if method in self.methods:
                own += [{}, *self.variants.get(ALL, ())]
            own += self.variants.get(method, ())
            for variant, changes in itertools.product(own, product_of(self.values)):
                yield method, {**changes, **variant}


def describe(changes: Mapping[str, Any]) -> str:
    """Return settings as text: ``key=value key=value``."""
    return " ".join(f"{key}={typed(value)}" for key, value in changes.items())


def product_of(values: Values) -> list[dict[str, Any]]:
    """Return every combination of the values, the last key changing fastest."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
