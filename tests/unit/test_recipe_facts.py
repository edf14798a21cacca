"""What each recipe's file says is data: every setting at every scale, and where its value comes from.

``tests/facts/recipes.csv`` says it once more, by hand; what a file does not say comes from its ``base`` and
from the options' defaults (``options.csv``). The paper's own numbers (``[paper]``) have tests of their own.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support import FACTS

from fedcue.config.recipes import recipes
from fedcue.foreign import read_toml


def settings(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", json.dumps(value)


def told() -> dict[str, dict[str, tuple[str, str]]]:
    """Return each recipe's settings with their places."""
    found: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in recipes()}
    with (FACTS / "recipes.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name in row["recipes"].split():
                assert row["setting"] not in found[name], f"{name}: {row['setting']} is told twice"
                found[name][row["setting"]] = row["value"], row["place"]
    return found


TOLD = told()


@pytest.mark.parametrize("name", recipes())
def test_every_setting_of_a_recipe_is_that_of_its_source(name: str) -> None:
    whole = {
        key: part for key, part in read_toml(recipes()[name]).items() if key not in ("paper", "description")
    }
    found, expected = dict(settings(whole)), TOLD[name]
    for key, value in found.items():
        assert key in expected, f"{name}: {key}={value} is in no table: say where it comes from"
        wanted, place = expected[key]
        assert value == wanted, f"{name}: {key}={value}, but {wanted} is from: {place}"
    assert found.keys() == expected.keys(), f"{name} has no {expected.keys() - found.keys()} any more"


def test_every_line_names_its_place() -> None:
    assert all(place for own in TOLD.values() for _, place in own.values())
