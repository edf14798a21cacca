"""What the paper reports for a run's recipe, method and settings; accuracies in percent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedcue.config.layers import parse
from fedcue.config.recipes import DOMAIN, NOT_REACHED, read_recipe, recipes
from fedcue.config.words import flat

QUOTED = {
    "mean_accuracy": "mean",
    "worst_accuracy": "worst",
    "percentile_5_accuracy": "percentile_5",
    "percentile_10_accuracy": "percentile_10",
    "percentile_15_accuracy": "percentile_15",
    "heldout_mean_accuracy": "heldout_mean",
    "rounds_to_target": "rounds",
    "seconds_to_target": "seconds",
    "client_download_floats_to_target": "floats",
}
"""Our measures and their keys in a recipe's ``[paper]`` table."""

_PUBLISHED = {
    "method.logit_prior": "none", "method.temperature": 0.05, "method.layers": [4, 5, 6],
    "method.prior": "client", "evaluation.priors": "labels", "privacy.name": "none",
}  # fmt: skip
"""Settings of all its runs, unless a recipe has numbers for other ones."""

NOTE = "The paper's numbers are as printed there, at its own scale."


def paper_numbers(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the paper's numbers for a run's settings by our measure's name; none where it has none.

    A recipe holds them as ``[paper.METHOD]``, for a sweep by its variants: ``"key=value key=value"``.
    """
    quoted = _quoted(config)
    found = {measure: quoted.get(key) for measure, key in QUOTED.items()}
    for key, value in quoted.items():
        if key.startswith(DOMAIN):
            found[domain_measure(key.removeprefix(DOMAIN))] = value
    return {measure: float(value) for measure, value in found.items() if isinstance(value, int | float)}


def paper_missed_target(config: Mapping[str, Any]) -> bool:
    """Say whether the paper's rounds, seconds and floats were not enough to reach its target."""
    return bool(_quoted(config).get(NOT_REACHED, False))


def domain_measure(domain: str) -> str:
    """Return the name of the measure "mean accuracy of a domain's clients"."""
    return f"domain:{domain}"


def _quoted(config: Mapping[str, Any]) -> Mapping[str, Any]:
    name, method = config.get("recipe"), config.get("method")
    if not isinstance(name, str) or name not in recipes() or not isinstance(method, Mapping):
        return {}
    table = read_recipe(name)[1].get("paper")
    own = table.get(method.get("name")) if isinstance(table, Mapping) else None
    if not isinstance(own, Mapping):
        return {}
    settings = flat(config)
    variants = {key: value for key, value in own.items() if isinstance(value, Mapping)}
    fitting = [value for key, value in variants.items() if _is_of(key, settings)]
    if fitting:
        return fitting[0]
    return own if _as_published(settings) else {}


def _as_published(settings: Mapping[str, Any]) -> bool:
    return all(settings.get(key, value) == value for key, value in _PUBLISHED.items())


def _is_of(variant: str, settings: Mapping[str, Any]) -> bool:
    """Say whether a run has the settings ``key=value key=value``; values may hold spaces."""
    wanted = parse(re.split(r" (?=[\w.]+=)", variant))
    return all(settings.get(key, settings.get(f"{key}.name")) == value for key, value in wanted.items())
