"""From a recipe and ``key=value`` overrides to one frozen, validated configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError, create_model

from fedcue.config import own
from fedcue.config.explain import explain
from fedcue.config.recipes import NAMED, merge, read_recipe, read_settings
from fedcue.config.settings import RunConfig
from fedcue.config.words import flat
from fedcue.data.options import DataOptions
from fedcue.errors import ConfigError, RunFolderError, shown, unknown
from fedcue.foreign import expanded, parse_toml
from fedcue.methods.base import Method
from fedcue.model.prompted import fast_precision
from fedcue.options import Options
from fedcue.registry import DATASETS, METHODS

_DEFAULTS = {"aggregate": "mean", "privacy": "none"}
"""Names of the sections that need not be given."""

_RECIPE_ONLY = ("scale", "per_method", "compare", "paper", "description", "profile", "environment")
"""Keys of a recipe file that choose settings or describe it, and are not settings themselves."""


def load(
    recipe: str | Path = "default", overrides: Iterable[str] = (), *, data: DataOptions | None = None
) -> RunConfig:
    """Load a recipe by name or path and apply ``key=value`` overrides in order.

    For example ``configure("default", ["method=fedvpt", "rounds=20"])``; ``fedcue list`` names the recipes
    and ``fedcue show METHOD`` what it can be set to.
    ``data`` takes the place of the recipe's dataset: images given in Python (``fedcue.from_examples``).
    """
    if isinstance(overrides, str | Mapping):
        raise ConfigError('Settings are a list of texts, such as ["rounds=20", "method=fedvpt"].')
    if data is not None and not isinstance(data, DataOptions):
        raise ConfigError(
            f"data={shown(data)} is not what fedcue.from_examples returns. For a folder give the settings "
            '["data=folder", "data.root=FOLDER"].'
        )
    name, settings = read_recipe(recipe)
    return resolve(settings, parse(overrides), name, data=data)


def load_folder(
    folder: Path, overrides: Mapping[str, Any] | None = None, trusted: Collection[str] = ()
) -> RunConfig:
    """Load the configuration that a run left in its folder, whoever made it.

    It may name what is registered. A class by import path must be one of ``trusted``, and no folder
    says which cluster is joined.
    Nothing is made outside the folder: where it wants something kept on disk, there must be a folder.
    """
    path = folder / "config.toml"
    if not path.is_file():
        raise RunFolderError(f"{folder} holds no config.toml: give the folder of a run that was started.")
    settings = read_settings(path)
    if "base" in settings:
        raise ConfigError(f"{path} is built on another file (base), which no run writes. Remove that line.")
    if isinstance(settings.get("engine"), dict):  # who joins a cluster runs its code
        settings["engine"].pop("address", None)
    config = resolve(settings, overrides, str(settings.get("recipe", "custom")), trusted)
    kept = {"cache.folder": config.cache.folder, "data.cache_folder": config.data.cache_folder}
    for key, place in kept.items():
        if place is not None and not expanded(place).is_dir():
            raise ConfigError(f"{path} asks for {key}={place}, which does not exist. Make that folder first.")
    return config


def resolve(
    settings: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    name: str = "custom",
    trusted: Collection[str] | None = None,
    data: DataOptions | None = None,
) -> RunConfig:
    """Fold the layers of settings into one and validate it; ``data``, if given, is the dataset.

    With ``trusted``, the settings are a stranger's: of classes by import path they may name only these.
    """
    try:
        folded = {"recipe": name, **fold(layers(settings, dict(overrides or {}), trusted))}
        if folded.get("precision") == "auto":  # from here on it is the same on all machines
            folded["precision"] = fast_precision(str(folded.get("device", "cpu")))
        if data is not None:
            folded["data"] = {"name": DATASETS.name_of(type(data))}
        if own.OWN in (_name_of("data", folded), _name_of("partition", folded)):
            folded = own.decided(folded, lambda known: _validate(known, trusted, data))
        if isinstance(folded.get("partition"), dict):  # clients of the data's own are kept by default
            named = {"partition", "partition.name"} & set(overrides or {})
            folded["partition"].setdefault("own_clients", "mix" if named else "keep")
        return _validate(folded, trusted, data)
    except RecursionError as error:
        raise ConfigError("Settings are nested too deeply. Give section.key=value.") from error


def layers(
    settings: Mapping[str, Any], overrides: dict[str, Any], trusted: Collection[str] | None = None
) -> list[Mapping[str, Any]]:
    """Return the layers of settings in the order in which they are laid: later ones win.

    What the method is usually given under ``privacy=dp`` is laid where nothing else is.
    A new name of a method, dataset and so on drops the options of the old one. This is why names come
    before the options given with them.
    """
    scale, asked = overrides.pop("scale", None), overrides.pop("profile", None)
    recipe = {key: value for key, value in settings.items() if key not in _RECIPE_ONLY}
    scaled = {} if scale is None else _choice("scale", scale, _table(settings, "scale"))
    names = {key: value for key, value in overrides.items() if key.removesuffix(".name") in NAMED}
    name = _name_of("method", fold([recipe, scaled, names]))
    method = cast(type[Method], METHODS.get(name, trusted))
    profile = settings.get("profile") if asked is None else None
    laid = [
        recipe,
        {key: value for key, value in scaled.items() if key != "per_method"},
        {"method": name},
        {} if profile is None else _choice("profile", profile, method.profiles),
        _table(_table(settings, "per_method"), name),
        _table(_table(scaled, "per_method"), name),
        {} if asked is None else _choice("profile", asked, method.profiles),
        names,
        overrides,
        method.fixed,
    ]
    given = flat(fold(laid))
    if given.get("privacy.name") != "dp":
        return laid
    return [*laid, {key: value for key, value in method.under_dp.items() if key not in given}]


def fold(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return layers of settings as one: later ones win."""
    folded: dict[str, Any] = {}
    for layer in layers:
        merge(folded, layer)
    return folded


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
        table = parse_toml(f"value = {text}")
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


def _validate(
    settings: dict[str, Any], trusted: Collection[str] | None, data: DataOptions | None = None
) -> RunConfig:
    classes: dict[str, type[Options]] = {}
    engine = settings.get("engine")
    if isinstance(engine, dict) and "workers" in engine:  # another spelling of the one setting
        settings["workers"] = engine.pop("workers")
    for section, name in _DEFAULTS.items():
        settings[section] = {"name": name, **settings.get(section, {})}
    for section, registry in NAMED.items():
        if registry is not None:
            options = registry.get(_name_of(section, settings), trusted)
            settings[section] = {key: value for key, value in settings[section].items() if key != "name"}
            classes[section] = options
    model = _model(tuple(classes.items()))
    try:
        config = model.model_validate(settings)
        return config if data is None else config.model_copy(update={"data": data})
    except ValidationError as error:
        raise ConfigError(explain(error, model)) from error


@cache
def _model(classes: tuple[tuple[str, type[Options]], ...]) -> type[RunConfig]:
    """Return the configuration's type where method, data and so on are of these classes."""
    fields: dict[str, Any] = {section: (options, ...) for section, options in classes}
    return create_model("RunConfig", __base__=RunConfig, **fields)


def dump(config: RunConfig) -> dict[str, Any]:
    """Return every setting as plain values, names of method, data and partition included."""
    plain = config.model_dump(mode="json", exclude_none=True, serialize_as_any=True)
    for section, registry in NAMED.items():
        if registry is not None:
            part = getattr(config, section)
            plain[section] = {"name": registry.name_of(type(part)), **plain[section]}
    return plain
