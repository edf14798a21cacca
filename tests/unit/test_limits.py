"""What every option of a run is by default, which numbers it admits and which words: data, as defaults are.

``tests/facts/options.csv`` says it once more, by hand. An option that is added, or whose limits are moved on
purpose, is entered there; ``test_defaults.py`` names the sources of methods' values.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from annotated_types import Ge, Gt, Le, Lt
from support import FACTS

from fedcue.config.sections import CommonSettings
from fedcue.methods.base import Method
from fedcue.options import Options
from fedcue.registry import AGGREGATES, METHODS, PARTITIONS, PRIVACY

SIGNS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}


def parts() -> Iterator[tuple[str, type]]:
    yield "run", CommonSettings
    for name, field in CommonSettings.model_fields.items():
        if isinstance(field.default, Options):
            yield name, type(field.default)
    yield "method", Method
    for registry in (METHODS, AGGREGATES, PRIVACY, PARTITIONS):
        for name in registry.builtin:
            yield f"{registry.kind} {name}", registry.get(name)


def limits(field: Any) -> list[str]:
    """Return the bounds of a field, those within a union too."""
    found = [f"{SIGNS[type(mark)]} {_bound(mark)}" for mark in field.metadata if type(mark) in SIGNS]
    for part in _inner(field.annotation):
        for mark in getattr(part, "__metadata__", ()):
            found += [f"{SIGNS[type(one)]} {_bound(one)}" for one in _marks(mark) if type(one) in SIGNS]
    return sorted(set(found))


def _marks(mark: Any) -> list[Any]:
    return [mark, *getattr(mark, "metadata", ())]


def _bound(mark: Any) -> Any:
    return next(getattr(mark, name) for name in ("ge", "gt", "le", "lt") if hasattr(mark, name))


def _inner(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        if not isinstance(part, str):
            yield from _inner(part)


def words(field: Any) -> list[str]:
    """Return the words that a field admits."""
    return [word for part in _inner(field.annotation) for word in get_args(part) if isinstance(word, str)]


def rows(options: type) -> dict[str, tuple[str, str, str]]:
    return {
        key: (repr(field.default), " ".join(limits(field)), " ".join(words(field)))
        for key, field in options.model_fields.items()
        if not isinstance(field.default, Options)
    }


def found() -> dict[tuple[str, str], tuple[str, str, str]]:
    """Return every option; what all methods have is told once, and again only where one has it otherwise."""
    common = rows(Method)
    return {
        (part, key): row
        for part, options in parts()
        for key, row in rows(options).items()
        if options is Method or not (issubclass(options, Method) and common.get(key) == row)
    }


def told() -> dict[tuple[str, str], tuple[str, str, str]]:
    with (FACTS / "options.csv").open(newline="", encoding="utf-8") as file:
        return {
            (row["part"], row["option"]): (row["default"], row["limits"], row["words"])
            for row in csv.DictReader(file)
        }


TOLD = told()


@pytest.mark.parametrize("part", sorted({part for part, _ in TOLD}))
def test_every_option_has_the_default_and_the_limits_that_are_written_down(part: str) -> None:
    ours = {key: value for key, value in found().items() if key[0] == part}
    assert ours == {key: value for key, value in TOLD.items() if key[0] == part}


def test_every_option_is_written_down() -> None:
    assert found().keys() == TOLD.keys(), "enter a new option in tests/facts/options.csv, take an old one out"
