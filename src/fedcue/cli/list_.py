"""``fedcue list``: what there is to choose from."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def list_() -> None:
    """List recipes, methods, datasets, partitions and backbones."""
    from fedcue.config.recipes import read_recipe, recipes
    from fedcue.registry import DATASETS, METHODS, PARTITIONS

    console = Console(soft_wrap=True)
    table = Table("recipe", "what it is", box=None, title_justify="left")
    for name in recipes():
        table.add_row(name, str(read_recipe(name)[1].get("description", "")))
    console.print(table)
    for title, names in {
        "methods": METHODS.names(),
        "datasets": DATASETS.names(),
        "partitions": PARTITIONS.names(),
        "backbones": ["embedded", "a folder with model.safetensors and config.json", "a hub id (timm/...)"],
    }.items():
        console.print(f"\n[bold]{title}[/]\n  {', '.join(names)}", highlight=False)
