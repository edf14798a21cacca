"""A recipe's ``[paper]`` table: what the paper prints for its runs, under keys that are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedcue.errors import ConfigError, shown, unknown

KEYS = (
    "mean", "worst", "percentile_5", "percentile_10", "percentile_15", "heldout_mean", "rounds", "floats",
    "seconds",
)  # fmt: skip
"""Accuracies in percent; then what the target took: rounds, floats that one client received, seconds."""

DOMAIN = "domain_"
"""Begins the keys of accuracies on one domain."""

NOT_REACHED = "not_reached"
"""Says that rounds, floats and seconds did not suffice for the target."""


def check_paper(recipe: str, table: Any) -> None:
    """Refuse a ``[paper]`` table with a key that nothing reads, or with something that is no number."""
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
