"""What makes a run the run it is: the settings that differ from its recipe's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcue.after.retest import TEST_ONLY
from fedcue.config.layers import dump, resolve
from fedcue.config.scope import NOT_IN_LABELS, scope_of
from fedcue.config.settings import RunConfig
from fedcue.config.words import flat, typed

NOT_APART = ("evaluation.every",)
"""Settings that set runs apart and not what a row says of them: how often a run is tested on its way."""


def _settings_that_matter(config: RunConfig) -> dict[str, Any]:
    """Return every setting on which the result depends, by dotted key; recipe and seed are left out."""
    found = flat(dump(config))
    found["backbone.name"] = _backbone_name(found["backbone.name"])
    return {
        key: value
        for key, value in found.items()
        if scope_of(key) not in NOT_IN_LABELS and key not in NOT_APART
    }


def differences(config: RunConfig, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that differ from the recipe's own for the same method, as typed.

    Those of a scale count, too: what the recipe says outside its scales is the measure.
    """
    own = _settings_that_matter(config)
    base = _settings_that_matter(resolve(recipe, {"method": own["method.name"]}, config.recipe))
    if recipe.get("precision") == "auto":  # another machine may settle it otherwise: a row says which it was
        del base["precision"]
    unusual = flat(config.model_dump(mode="json", exclude_defaults=True, serialize_as_any=True))
    found: dict[str, str] = {}
    for key in sorted({*own, *base}):
        name = f"{key.partition('.')[0]}.name"
        renamed = name in own and own[name] != base[name]
        same = own.get(key) == base.get(key)
        if renamed and key != name:
            same = key not in unusual  # an option of the new name at its default, or one of the old name
        if same or key == "method.name":
            continue
        found[key] = typed(own[key]) if key in own else "none"
    return found


def trained_alike(config: RunConfig) -> str:
    """Return a text that is equal for runs that train the same model and differ at most in its test."""
    own = _settings_that_matter(config)
    kept = {key: value for key, value in own.items() if key not in TEST_ONLY}
    in_loss = own.get("method.logit_prior") == "train+test"
    return json.dumps([config.recipe, config.seed, in_loss, kept], sort_keys=True, default=str)


def asked_at_test(config: RunConfig) -> list[str]:
    """Return the settings that matter at test only, as typed."""
    own = _settings_that_matter(config)
    return [f"{key}={typed(own[key])}" for key in TEST_ONLY if key in own]


def _backbone_name(name: str) -> str:
    """Return a backbone's name; that of a folder is its last part, wherever it lies."""
    return Path(name).name if "/" in name and Path(name).is_dir() else name
