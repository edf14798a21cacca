"""From a recipe and ``key=value`` overrides to one frozen, validated configuration."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError, create_model

from fedcue.errors import ConfigError, shown, unknown
from fedcue.registry import AGGREGATES, DATASETS, METHODS, PARTITIONS, PRIVACY, Options, Registry
from fedcue.settings import RunConfig

NAMED: dict[str, Registry | None] = {
    "method": METHODS,
    "data": DATASETS,
    "partition": PARTITIONS,
    "aggregate": AGGREGATES,
    "privacy": PRIVACY,
    "backbone": None,
    "transport": None,
}
"""Sections for which ``section=NAME`` is short for ``section.name=NAME``."""

DEFAULTS = {"aggregate": "mean", "privacy": "none"}
"""Names of the sections that need not be given."""

RECIPE_ONLY = ("scale", "per_method", "compare", "paper", "description", "profile", "environment")
"""Keys of a recipe file that choose settings or describe it, and are not settings themselves."""

NOT_INHERITED = ("description", "compare", "paper")
"""Keys that a recipe built on another one (``base = "NAME"``) does not take over from it."""


MAX_PROBLEMS = 20
"""Mistakes told at once at most."""

TYPE_TRIED = re.compile(r"\W|^(int|float|bool|str)$")
"""What pydantic adds to a setting's place where several types are allowed: the one it tried."""


def recipes() -> dict[str, Path]:
    """Return the recipes that come with the package, by name."""
    folder = Path(str(resources.files("fedcue"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(recipe: str | Path = "default", overrides: Iterable[str] = ()) -> RunConfig:
    """Load a recipe by name or path and apply ``key=value`` overrides in order."""
    name, settings = read_recipe(recipe)
    return resolve(settings, parse(overrides), name)


def read_recipe(recipe: str | Path, above: tuple[Path, ...] = ()) -> tuple[str, dict[str, Any]]:
    """Return a recipe's name and its raw contents, merged over those of its ``base`` if it has one."""
    path = recipes().get(str(recipe), Path(recipe))
    if not _is_file(path):
        raise ConfigError(unknown("recipe", str(recipe), recipes()) + " A path to a TOML file works too.")
    if path.resolve() in above:
        raise ConfigError(f"Recipe {path} is built on itself. Give base another recipe, or leave it out.")
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(
            f"Recipe {path} is not readable TOML: {error}. Mend that place, or start from a recipe that "
            "fedcue list names."
        ) from error
    if "base" not in own:
        return path.stem, own
    base = str(own.pop("base"))
    found = base if base in recipes() else path.parent / base
    _, settings = read_recipe(found, (*above, path.resolve()))
    merged: dict[str, Any] = {}
    for table in (settings, own):
        merge(merged, {key: value for key, value in table.items() if key not in NOT_INHERITED})
    return path.stem, merged | {key: own[key] for key in NOT_INHERITED if key in own}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with marks no file name can have
        return False


def resolve(
    settings: Mapping[str, Any], overrides: Mapping[str, Any] | None = None, name: str = "custom"
) -> RunConfig:
    """Validate settings: recipe, then its scale, its profile, the method's own tables, overrides.

    Later ones win; a profile among the overrides wins over the recipe's tables, and what a method fixes
    over everything.
    """
    try:
        return _resolve(settings, dict(overrides or {}), name)
    except RecursionError as error:
        raise ConfigError("Settings are nested too deeply. Give section.key=value.") from error


def _resolve(settings: Mapping[str, Any], overrides: dict[str, Any], name: str) -> RunConfig:
    merged: dict[str, Any] = {"recipe": name}
    merge(merged, {key: value for key, value in settings.items() if key not in RECIPE_ONLY})
    scale = overrides.pop("scale", None)
    scaled = {} if scale is None else _choice("scale", scale, _table(settings, "scale"))
    merge(merged, {key: value for key, value in scaled.items() if key != "per_method"})
    asked, profile = overrides.pop("profile", None), settings.get("profile")
    names = {key: value for key, value in overrides.items() if key.removesuffix(".name") in NAMED}
    method = _name_of("method", _merged(merged, names))
    merge(merged, {"method": method})  # before its own tables, which a new name would drop
    known = getattr(METHODS.get(method), "profiles", {})
    if profile is not None and asked is None:
        merge(merged, _choice("profile", profile, known))
    for table in (settings, scaled):
        merge(merged, _table(_table(table, "per_method"), method))
    if asked is not None:
        merge(merged, _choice("profile", asked, known))
    merge(merged, names)  # before the options given with them, which a new name would drop
    merge(merged, overrides)
    merge(merged, getattr(METHODS.get(method), "fixed", {}))
    return _validate(merged)


def _merged(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(settings)
    merge(merged, more)
    return merged


def _table(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table of a recipe, empty if it has none."""
    table = settings.get(key, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{key}={shown(table)} must be a table of settings, such as [{key}.NAME].")
    return table


def _choice(kind: str, name: Any, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    found = tables.get(name) if isinstance(name, str) else None
    if not isinstance(found, Mapping):
        raise ConfigError(unknown(kind, name if isinstance(name, str) else shown(name), tables))
    return cast(Mapping[str, Any], found)


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


def parse(overrides: Iterable[str]) -> dict[str, Any]:
    """Return ``key=value`` texts as typed values (TOML, or else plain text)."""
    parsed: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"{shown(text)} is not of the form key=value, such as rounds=20; a recipe comes first."
            )
        parsed[key.strip()] = _typed(value)
    return parsed


def _typed(text: str) -> Any:
    """Return the TOML value a text stands for, or the text itself."""
    try:
        text.encode()
        table = tomllib.loads(f"value = {text}")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{shown(text)} is not valid UTF-8. Give names in UTF-8.") from error
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _name_of(section: str, settings: Mapping[str, Any]) -> str:
    value = settings.get(section)
    name = value.get("name") if isinstance(value, Mapping) else value
    if not isinstance(name, str):
        registry = NAMED[section]
        known = registry.names() if registry else []
        raise ConfigError(f"No {section} is given. Give {section}=NAME with one of: {', '.join(known)}.")
    return name


def _validate(settings: dict[str, Any]) -> RunConfig:
    classes: dict[str, type[Options]] = {}
    for section, name in DEFAULTS.items():
        settings[section] = {"name": name, **settings.get(section, {})}
    for section, registry in NAMED.items():
        if registry is not None:
            options = registry.get(_name_of(section, settings))
            settings[section] = {key: value for key, value in settings[section].items() if key != "name"}
            classes[section] = options
    model = _model(tuple(classes.items()))
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(_explain(error, model)) from error


@cache
def _model(classes: tuple[tuple[str, type[Options]], ...]) -> type[RunConfig]:
    """Return the configuration's type where method, data and so on are of these classes."""
    fields: dict[str, Any] = {section: (options, ...) for section, options in classes}
    return create_model("RunConfig", __base__=RunConfig, **fields)


def _explain(error: ValidationError, model: type[RunConfig]) -> str:
    lines: list[str] = []
    for problem in error.errors(include_url=False):
        key = ".".join(part for part in map(str, problem["loc"]) if not TYPE_TRIED.search(part))
        if problem["type"] == "extra_forbidden":
            given = ".".join(map(str, problem["loc"]))
            lines.append(unknown("key", given, _keys_beside(problem["loc"], model)))
        elif problem["type"] == "int_parsing_size":
            lines.append(f"{key}={shown(problem['input'])} must be a number of at most 64 bits.")
        elif problem["type"] == "tuple_type":
            lines.append(f"{key}={shown(problem['input'])} must be a list, such as [1, 2].")
        elif problem["type"] == "path_type":
            lines.append(f"{key}={shown(problem['input'])} must be a path.")
        elif problem["type"] == "missing":
            lines.append(f"{key} is required. Give {key}=VALUE.")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            given = f"{key}={shown(problem['input'])}: "
            message = f"{message[:1].lower()}{message[1:]}."
            if lines and lines[-1].startswith(given):  # what else may stand there
                lines[-1] = f"{lines[-1][:-1]}, or {message}"
            else:
                lines.append(given + message)
    more = [f"... and {len(lines) - MAX_PROBLEMS} more problems."] if len(lines) > MAX_PROBLEMS else []
    return "\n".join([*dict.fromkeys(lines[:MAX_PROBLEMS]), *more])


def _keys_beside(location: tuple[int | str, ...], model: type[Options]) -> list[str]:
    """Return the keys that are allowed where an unknown one was found."""
    parents = [str(part) for part in location[:-1]]
    options: Any = model
    for part in parents:
        field = getattr(options, "model_fields", {}).get(part)
        options = None if field is None else field.annotation
    return [".".join([*parents, key]) for key in getattr(options, "model_fields", {})]


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as ``section.key: value``."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def dump(config: RunConfig) -> dict[str, Any]:
    """Return every setting as plain values, names of method, data and partition included."""
    plain = config.model_dump(mode="json", exclude_none=True, serialize_as_any=True)
    for section, registry in NAMED.items():
        if registry is not None:
            part = getattr(config, section)
            plain[section] = {"name": registry.name_of(type(part)), **plain[section]}
    return plain
