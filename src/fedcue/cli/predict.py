"""``fedcue predict``: classify images with a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedcue.cli.arguments import Fetch, Trust
from fedcue.errors import printable


def predict(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    client: Annotated[int | None, typer.Option(help="Predict as this client of the run.")] = None,
    priors: Annotated[
        Path | None, typer.Option(help="JSON file: a list of class priors, or an object {class: prior}.")
    ] = None,
    trust: Trust = None,
    fetch: Fetch = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Classify images: class, probability and, for PEP, the mixing weights of the class prompts."""
    from fedcue.after.predict import load
    from fedcue.errors import ConfigError

    if client is not None and priors is not None:
        raise ConfigError("Give --client or --priors, not both.")
    model = load(folder, trust or (), fetch=fetch)
    given = None if priors is None else _read_priors(priors, model.classes)
    result = model.predict(images, given, client)
    rows: list[dict[str, Any]] = [
        {
            "image": str(path),
            "class": label,
            "probability": float(probability.max()),
            **{name: _shares(values[i], model.classes) for name, values in result.details.items()},
        }
        for i, (path, label, probability) in enumerate(
            zip(images, result.labels, result.probabilities, strict=True)
        )
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table(Column("image", overflow="fold"), "class", "probability", *result.details, box=None)
    for row in rows:
        weights = [
            ", ".join(f"{k} {v:.0%}" for k, v in list(row[name].items())[:3]) for name in result.details
        ]
        table.add_row(
            *map(_plain, (row["image"], row["class"], f"{row['probability']:.1%}", *weights)),
        )
    Console(soft_wrap=True).print(table)


def _plain(text: str) -> str:
    """Return a name from data as the terminal may show it."""
    return escape(printable(text))


def _shares(weights: Any, classes: tuple[str, ...]) -> dict[str, float]:
    """Return the weights of one image, averaged over blocks, largest first, zeros left out."""
    mean = weights.mean(0).tolist()
    ordered = sorted(zip(mean, classes, strict=True), reverse=True)
    return {name: weight for weight, name in ordered if weight > 0}


def _read_priors(path: Path, classes: tuple[str, ...]) -> list[float]:
    from fedcue.errors import ConfigError, unknown

    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(given, dict):
            for name in given:
                if name not in classes:
                    raise ConfigError(unknown("class", str(name), classes))
            given = [given.get(name, 0.0) for name in classes]
        return [float(value) for value in given]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a JSON list or object of class priors: {error}.") from error
