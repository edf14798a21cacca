"""The runs of a grid: from the command line, or from the recipe's ``[compare]`` table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError

from fedcue.config.layers import parse
from fedcue.config.recipes import read_recipe
from fedcue.errors import ConfigError
from fedcue.foreign import parse_toml
from fedcue.grid.cells import ALL, Values, Variants
from fedcue.options import Options
from fedcue.registry import METHODS, PAPER_METHODS

BETWEEN_SETTINGS = re.compile(r"\s+(?=[\w.]+=)")
"""What separates ``key=value`` from the next one; a value may hold spaces."""


class CompareTable(Options):
    """A recipe's ``[compare]`` table: the runs if the command line names none."""

    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    target: float = Field(default=0.8, gt=0, le=1)
    sweep: dict[str, Any] = {}
    variants: dict[str, tuple[str, ...]] = {}


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
            "seeds = [NUMBERS], target = a share up to 1, a table sweep of key = [VALUES] and a table "
            'variants of METHOD = ["key=value key=value"].'
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
    """Return the methods of ``--methods paper,a,b``; without it those of the recipe, or the paper's.

    ``all`` are all that there are, those of other packages included. With ``none`` only variants are run.
    """
    if text == "none":
        return ()
    given = list(default) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    several = {"paper": PAPER_METHODS, "all": tuple(METHODS.names())}
    names = [name for one in given or ["paper"] for name in several.get(one, (one,))]
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
            found = parse_toml(f"values = [{listed}]")["values"]
        except (ValueError, RecursionError):
            found = [parse([f"{key}={part.strip()}"])[key] for part in listed.split(",")]
        values[key] = tuple(found)
    return values


def read_variants(texts: Iterable[str] | None, table: CompareTable, methods: str | None) -> Variants:
    """Return the variants of ``--variant "METHOD: key=value key=value"``; without it those of the recipe.

    A text without a method is a variant of every method. Where ``--methods`` names some, the recipe's
    variants of the others are left out.
    """
    if texts:
        given = [_method_and_settings(text) for text in texts]
    else:
        given = [(method, text) for method, listed in table.variants.items() for text in listed]
        if methods not in (None, "none"):
            named = read_methods(methods)
            given = [(method, text) for method, text in given if method in (*named, ALL, "all")]
    variants: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for method, text in given:
        changes = parse(BETWEEN_SETTINGS.split(text.strip()))
        if method in (ALL, "all"):
            method = ALL
        else:
            METHODS.get(method)
        variants[method] = (*variants.get(method, ()), changes)
    return variants


def _method_and_settings(text: str) -> tuple[str, str]:
    """Split ``METHOD: key=value``; the colon in the name of a method from outside has no space after it."""
    method, colon, settings = text.partition(": ")
    if colon and "=" not in method:
        return method.strip(), settings
    return ALL, text
