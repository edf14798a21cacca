"""The request of ``fedcue compare``: grids on one or several recipes, and the table it may replace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcue.config.layers import parse
from fedcue.config.recipes import read_recipe
from fedcue.errors import ConfigError, RunFolderError
from fedcue.grid.cells import Cell, Grid
from fedcue.grid.options import compare_table, read_methods, read_seeds, read_variants
from fedcue.record.files import read_json


@dataclass(frozen=True)
class Asked:
    """One recipe's grid and the accuracy whose cost is counted."""

    name: str
    grid: Grid
    target: float


def _split_recipes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the recipes, which come first, from the settings."""
    given = list(arguments)
    recipes = []
    while given and "=" not in given[0]:
        recipes.append(given.pop(0))
    return list(dict.fromkeys(recipes)) or ["default"], given


def asked_for(
    arguments: Sequence[str],
    methods: str | None = None,
    seeds: str | None = None,
    variants: Iterable[str] | None = None,
    target: float | None = None,
) -> list[Asked]:
    """Return the grid of each recipe; what the command line does not say is in its ``[compare]`` table."""
    recipes, overrides = _split_recipes(arguments)
    found: list[Asked] = []
    for recipe in recipes:
        table, name = compare_table(recipe), read_recipe(recipe)[0]
        grid = Grid(
            recipe,
            parse(overrides),
            read_methods(methods, table.methods),
            read_seeds(seeds, table.seeds),
            table.sweep,
            read_variants(variants, table, methods),
        )
        if not grid.methods and not grid.variants:
            raise ConfigError("--methods none leaves nothing to run. Give --variant, or methods.")
        if name in [one.name for one in found]:
            raise ConfigError(f"Two recipes are called {name!r}. Give them in calls of their own.")
        found.append(Asked(name, grid, table.target if target is None else target))
    return found


def check_earlier_table(folder: Path, cells: Sequence[Cell]) -> None:
    """Refuse to replace an earlier ``compare.json`` that has rows or seeds which these runs do not make."""
    path = folder / "compare.json"
    if not path.is_file():
        return
    made = {(cell.method, cell.variant, cell.seed) for cell in cells}
    for row in _rows(read_json(path)):
        for seed in row.get("seeds", []):
            if (row.get("method"), row.get("variant"), seed) not in made:
                label = " ".join(filter(None, [row.get("method"), row.get("variant"), f"seed {seed}"]))
                raise RunFolderError(
                    f"{path} has a row that this command does not make ({label}). Give another --out, or "
                    "--overwrite to replace the table; finished runs are kept."
                )


def _rows(table: Any) -> list[dict[str, Any]]:
    rows = table.get("rows", []) if isinstance(table, dict) else []
    return [row for row in rows if isinstance(row, dict)]
