"""Recipes: settings in TOML files, by name or path, and what a paper prints for their runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fedcue.errors import ConfigError, shown, unknown
from fedcue.foreign import read_toml
from fedcue.registry import AGGREGATES, DATASETS, METHODS, PARTITIONS, PRIVACY, Registry

NAMED: dict[str, Registry | None] = {
    "method": METHODS,
    "data": DATASETS,
    "partition": PARTITIONS,
    "aggregate": AGGREGATES,
    "privacy": PRIVACY,
    "backbone": None,
    "transport": None,
    "engine": None,
}
"""Sections for which ``section=NAME`` is short for ``section.name=NAME``."""

_NOT_INHERITED = ("description", "compare", "paper")
"""Keys that a recipe built on another one (``base = "NAME"``) does not take over from it."""


_MAX_BASES = 20
"""The longest chain of recipes that are built on each other."""


def recipes() -> dict[str, Path]:
    """Return the recipes that come with the package by name: ``cifar100/iid.toml`` is cifar100-iid."""
    folder = Path(str(resources.files("fedcue"))) / "recipes"
    paths = {path.relative_to(folder).with_suffix("").parts: path for path in folder.rglob("*.toml")}
    named = {"-".join(dict.fromkeys(parts)): path for parts, path in paths.items()}  # pacs/pacs is pacs
    return dict(sorted(named.items()))


def read_recipe(recipe: str | Path, above: tuple[Path, ...] = ()) -> tuple[str, dict[str, Any]]:
    """Return a recipe's name and its raw contents, merged over those of its ``base`` if it has one."""
    known, name = recipes(), str(recipe).replace("/", "-")
    path = known.get(name, Path(recipe))
    if not os.path.isfile(path):  # false, too, for a path that no disk can have
        raise ConfigError(unknown("recipe", str(recipe), known) + " A path to a TOML file works too.")
    if name not in known:
        name = next((other for other, place in known.items() if place == path.resolve()), path.stem)
    if path.resolve() in above:
        raise ConfigError(f"Recipe {path} is built on itself. Give base another recipe, or leave it out.")
    if len(above) > _MAX_BASES:
        raise ConfigError(f"Recipe {above[0]} is built on more than {_MAX_BASES} others. Write them as one.")
    own = read_settings(path)
    if "paper" in own:
        check_paper(name, own["paper"])
    if "base" not in own:
        return name, own
    base = str(own.pop("base"))
    found = base if base.replace("/", "-") in known else path.parent / base
    _, settings = read_recipe(found, (*above, path.resolve()))
    merged: dict[str, Any] = {}
    for table in (settings, own):
        merge(merged, {key: value for key, value in table.items() if key not in _NOT_INHERITED})
    return name, merged | {key: own[key] for key in _NOT_INHERITED if key in own}


def read_settings(path: Path) -> dict[str, Any]:
    """Return what one TOML file holds; its ``data.root`` may be relative to where the file lies."""
    try:
        own = read_toml(path)
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(
            f"Recipe {path} is not readable TOML: {error}. Mend that place, or start from a recipe that "
            "fedcue list names."
        ) from error
    data = own.get("data")
    root = data.get("root") if isinstance(data, dict) else None
    if isinstance(root, str) and os.path.exists(path.parent / root):
        own["data"] = {**own["data"], "root": str((path.parent / root).absolute())}
    return own


def import_paths(settings: Mapping[str, Any]) -> list[str]:
    """Return the classes that settings name by import path."""
    sections = [settings.get(section) for section, registry in NAMED.items() if registry is not None]
    names = [section.get("name") for section in sections if isinstance(section, Mapping)]
    return [name for name in names if isinstance(name, str) and ":" in name]


def merge(into: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Merge dotted or nested settings; a new method, dataset or partition drops the old one's options."""
    for dotted, value in settings.items():
        first, _, rest = dotted.partition(".")
        if not rest and first in NAMED and not isinstance(value, Mapping):
            value = {"name": value}
        if rest:
            value = {rest: value}
        if isinstance(value, Mapping):
            old = into.get(first)
            section = dict(old) if isinstance(old, Mapping) else {}
            new_name = value.get("name", section.get("name")) != section.get("name")
            if NAMED.get(first) is not None and new_name:
                section = {}
            merge(section, value)
            into[first] = section
        else:
            into[first] = value


KEYS = (
    "mean", "worst", "percentile_5", "percentile_10", "percentile_15", "heldout_mean", "rounds", "floats",
    "seconds",
)  # fmt: skip
"""Accuracies in percent; then what the target took: rounds, floats that one client received, seconds."""


DOMAIN = "domain_"
"""Prefix of the keys of accuracies on one domain."""


NOT_REACHED = "not_reached"
"""Key for a target that these rounds, floats and seconds did not reach."""


def check_paper(recipe: str, table: Any) -> None:
    """Refuse a ``[paper]`` table with a key that nothing reads, or with a value that is not a number."""
    for place, value in _numbers(recipe, "paper", table):
        key = place.rpartition(".")[2]
        if key == NOT_REACHED and value is True:
            continue
        if key not in KEYS and not key.startswith(DOMAIN):
            message = unknown("key", key, [*KEYS, f"{DOMAIN}NAME", NOT_REACHED])
            raise ConfigError(f"[{place.rpartition('.')[0]}] of recipe {recipe!r}: {message}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{place}={shown(value)} of recipe {recipe!r} must be a number.")


def _numbers(recipe: str, place: str, table: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield each number with its place: of a method, or of a method and the settings of a variant."""
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"{place}={shown(table)} of recipe {recipe!r} must be a table, as in pep = {{ mean = 95.46 }}."
        )
    for key, value in table.items():
        inside = f"{place}.{key}"
        if depth == 0 or (depth == 1 and isinstance(value, Mapping) and "=" in key):
            yield from _numbers(recipe, inside, value, depth + 1)
        else:
            yield inside, value
