"""``fedcue bench``: how close to this machine's limit training runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedcue.cli.arguments import Json

KEYS = ("backbone", "image_size", "batch", "classes", "workers", "turns")


def bench(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help=f"Any of {', '.join(KEYS)}.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure training, prototypes and evaluation against the machine's matrix multiplication.

    For example: fedcue bench backbone=DIR image_size=128 batch=50
    """
    from pydantic import ValidationError

    from fedcue.config import parse
    from fedcue.errors import ConfigError, unknown
    from fedcue.federate.bench import Job
    from fedcue.federate.bench import bench as measure

    given = parse(settings or [])
    for key in given:
        if key not in KEYS:
            raise ConfigError(unknown("key", key, KEYS))
    workers = given.pop("workers", 0)
    try:
        result = measure(Job(**given), workers)
    except ValidationError as error:
        problems = [f"{p['loc'][0]}={p['input']!r}: {p['msg']}" for p in error.errors()]
        raise ConfigError("; ".join(problems)) from error
    if as_json:
        typer.echo(json.dumps(result))
        return
    table = Table("what", "measured", box=None)
    for name, value in result.items():
        table.add_row(name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else str(value))
    Console(soft_wrap=True).print(table)
