"""``fedcue list``: what there is to choose from."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedcue.errors import ConfigError, printable, unknown
from fedcue.foreign import read_toml

if TYPE_CHECKING:
    from fedcue.registry import Registry

FIRST = "to start with"
"""The group of recipes that lie in no dataset's folder."""

_BACKBONES = {
    "embedded": "a tiny ViT for 32 pixels, for a first try",
    "FOLDER": "a folder with model.safetensors and config.json",
    "timm/NAME": "an id of the hub, such as timm/vit_small_patch16_224.augreg_in21k",
}


def list_(
    what: Annotated[
        str, typer.Argument(help="recipes, methods, datasets, partitions, aggregates, privacy or backbones.")
    ] = "recipes",
) -> None:
    """List recipes by dataset, or methods, datasets, partitions and so on, one line each."""
    from fedcue.config.recipes import NAMED, recipes

    console = Console()
    registries = {_plural(registry.kind): registry for registry in NAMED.values() if registry}
    if what == "recipes":
        _recipes(console, recipes())
        for title, registry in registries.items():
            line(console, f"\n{title}: {', '.join(registry.names())}")
        line(console, f"\nbackbones: {', '.join(_BACKBONES)}")
        line(console, "\nfedcue list methods says what each is, fedcue show NAME what it can be set to.")
    elif what in registries:
        _lines(console, {name: summary(registries[what], name) for name in registries[what].names()})
    elif what == "backbones":
        _lines(console, _BACKBONES)
    else:
        raise ConfigError(unknown("list", what, ["recipes", *registries, "backbones"]))


def _plural(kind: str) -> str:
    return kind if kind.endswith("y") else f"{kind}s"


def _recipes(console: Console, known: Mapping[str, Path]) -> None:
    """Print the recipes under the dataset in whose folder they lie."""
    groups: dict[str, dict[str, str]] = {FIRST: {}}
    for name, path in known.items():
        group = FIRST if path.parent.name == "recipes" else path.parent.name
        about = read_toml(path).get("description", "")
        groups.setdefault(group, {})[name] = str(about)
    for number, (group, found) in enumerate(groups.items()):
        console.print("\n" * min(number, 1) + f"[bold]{group}[/]", highlight=False)
        _lines(console, found, "  ")


def _lines(console: Console, texts: Mapping[str, str], indent: str = "") -> None:
    wide = max(map(len, texts), default=0)
    for name, text in texts.items():
        line(console, f"{indent}{name:{wide}}  {text}")


def line(console: Console, text: str) -> None:
    """Print a text on one line: cut in a narrow terminal, whole in a file or a pipe."""
    if console.is_terminal:
        console.print(escape(text), highlight=False, no_wrap=True, overflow="ellipsis")
    else:
        console.print(escape(text), highlight=False, soft_wrap=True)


def summary(registry: Registry, name: str) -> str:
    """Return the first line of a part's docstring, read from its source: nothing is imported."""
    module, _, attribute = (registry.path(name) or name).partition(":")
    source = _source(module)
    for node in ast.parse(source.read_bytes()).body if source else ():
        if isinstance(node, ast.ClassDef) and node.name == attribute:
            return printable((ast.get_docstring(node) or "").partition("\n")[0].replace("``", ""))
    return ""


def _source(module: str) -> Path | None:
    """Return the file of a module; of its packages none is imported."""
    first, *rest = module.split(".")
    spec = find_spec(first)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    if rest:
        path = path.parent.joinpath(*rest)
        path = path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
    return path if path.is_file() and path.suffix == ".py" else None
