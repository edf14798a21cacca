"""``fedcue show``: what a recipe sets, or what a method and other parts can be set to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedcue.cli.grid_output import print_wide
from fedcue.cli.list_ import summary
from fedcue.errors import ConfigError, unknown

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from fedcue.options import Options

_ASIDE = ("description", "compare", "paper", "per_method", "scale")
"""Tables of a recipe that are no settings."""


OWN = "decided by looking at your images"
"""What the name ``own`` of a dataset or a partition means."""


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A recipe, a method, a section such as training, or partition=NAME, data=NAME and so on.",
        ),
    ],
) -> None:
    """Show what a recipe sets, or what a method can be set to: values, defaults and meaning.

    For example:

      fedcue show cifar100-pathological

      fedcue show pep

      fedcue show partition=dirichlet
    """
    from fedcue.config.recipes import recipes
    from fedcue.registry import METHODS

    console = Console()
    section, equals, part = name.partition("=")
    if equals:
        _show_part(console, section, part)
    elif name.replace("/", "-") in recipes() or name.endswith(".toml"):
        _show_recipe(console, name)
    elif name in METHODS.names() or ":" in name:
        _show_part(console, "method", name)
    elif name in _sections():
        _show_options(console, name, name, _sections()[name])
    else:
        known = [*recipes(), *METHODS.names(), *_sections()]
        raise ConfigError(unknown("recipe, method or section", name, known) + " fedcue list names all.")


def _sections() -> dict[str, type[Options]]:
    """Return the sections that have no name to choose, such as training."""
    from fedcue.config.sections import CommonSettings
    from fedcue.options import Options

    return {
        key: field.annotation
        for key, field in CommonSettings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options)
    }


def _show_part(console: Console, section: str, name: str) -> None:
    """Show what a method, dataset, partition and so on can be set to."""
    from fedcue.config.recipes import NAMED

    registry = NAMED.get(section)
    if registry is None:
        allowed = [f"{key}=" for key, known in NAMED.items() if known is not None]
        raise ConfigError(unknown("section", f"{section}=", allowed))
    _show_options(console, f"{section}={name}", section, registry.get(name))


def _show_options(console: Console, title: str, section: str, options: type[Options]) -> None:
    _title(console, title, (options.__doc__ or "").partition("\n")[0].replace("``", ""))
    rows = [
        (f"{section}.{key}", _default(field), field.description or "")
        for key, field in options.model_fields.items()
    ]
    _print(console, ("setting", "default", "meaning"), rows)


def _show_recipe(console: Console, recipe: str) -> None:
    """Show a recipe's settings beside the defaults, its command, and what else it holds."""
    from fedcue.config.recipes import merge, read_recipe, recipes
    from fedcue.config.words import flat, typed

    name, whole = read_recipe(recipe)
    _title(console, name, str(whole.get("description", "")))
    path = recipes().get(name)
    if path is not None:
        comments = itertools.takewhile(
            lambda line: line.startswith("#"), path.read_text("utf-8").splitlines()
        )
        for line in comments:
            console.print(escape(line.removeprefix("# ")), highlight=False, soft_wrap=True)
    settings: dict[str, Any] = {}
    merge(settings, {key: value for key, value in whole.items() if key not in _ASIDE})
    fields = _fields(settings)
    rows = []
    for key, value in flat(settings).items():
        default = _default(fields[key]) if key in fields else ""
        rows.append((key, typed(value), default, _meaning(key, value, fields)))
    _print(console, ("setting", "here", "default", "meaning"), rows)
    for scale in whole.get("scale", {}):
        console.print(f"other values with scale={escape(scale)}", highlight=False)
    for method in whole.get("per_method", {}):
        console.print(f"settings of its own with method={escape(method)}", highlight=False)


def _fields(settings: Mapping[str, Any]) -> dict[str, FieldInfo]:
    """Return the fields of a recipe's settings by dotted key, as far as torch need not be imported."""
    from fedcue.config.recipes import NAMED
    from fedcue.config.sections import CommonSettings

    parts: dict[str, type[Options]] = {"": CommonSettings, **_sections()}
    for section in ("data", "partition"):
        registry, name = NAMED[section], settings.get(section, {}).get("name")
        if registry is not None and name in registry.names():
            parts[section] = registry.get(name)
    return {
        f"{section}.{key}".removeprefix("."): field
        for section, options in parts.items()
        for key, field in options.model_fields.items()
    }


def _meaning(key: str, value: Any, fields: Mapping[str, FieldInfo]) -> str:
    """Return what a setting means, or what the part is that it names."""
    from fedcue.config.recipes import NAMED

    section, _, rest = key.partition(".")
    registry = NAMED.get(section)
    if key in fields:
        return fields[key].description or ""
    if registry is not None and rest == "name":
        return OWN if value == "own" else summary(registry, value)
    return f"fedcue show {section}=NAME tells" if registry is not None else ""


def _default(field: FieldInfo) -> str:
    """Return a setting's default as it would be typed."""
    from fedcue.config.words import typed

    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    return "-" if value is None else typed(value)


def _title(console: Console, name: str, about: str) -> None:
    console.print(f"[bold]{escape(name)}[/]  {escape(about)}", highlight=False, soft_wrap=True)


def _print(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that folds its last column in a terminal and is never folded elsewhere."""
    columns = [Column(title, no_wrap=True) for title in titles[:-1]]
    table = Table(*columns, Column(titles[-1], overflow="fold"), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row))
    if console.is_terminal:
        console.print(table, highlight=False)
    else:
        print_wide(console, table)
