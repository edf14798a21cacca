"""``fedcue predict``: classify images with a finished run."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Column, Table

from fedcue.cli.arguments import Fetch, Trust, busy
from fedcue.errors import many, printable

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from fedcue.after.files import FilePrediction
    from fedcue.after.predict import Model


def predict(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or user/repo of the hub.")
    ],
    images: Annotated[
        list[str], typer.Argument(help="Image files, folders, or patterns such as 'in/**/*.jpg'.")
    ],
    client: Annotated[
        str | None, typer.Option(help="Predict as this client of the run: its name or its number.")
    ] = None,
    priors: Annotated[
        str | None,
        typer.Option(
            help="JSON file: a list of class priors, or an object {class: prior}; em: from the images."
        ),
    ] = None,
    labelled: Annotated[
        Path | None,
        typer.Option(help="JSON file: how many images of each class are known, too (with --priors em)."),
    ] = None,
    table: Annotated[Path | None, typer.Option("--csv", help="Write image, class, probability here.")] = None,
    skip: Annotated[
        bool, typer.Option("--skip-unreadable", help="Name files that cannot be read and leave them out.")
    ] = False,
    trust: Trust = None,
    fetch: Fetch = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Classify images: class, probability and, for PEP, the mixing weights of the class prompts.

    For example:

      fedcue predict runs/pep-seed0 image.png --client 3

      fedcue predict runs/pep-seed0 photos --csv photos.csv --priors em --labelled counts.json
    """
    from fedcue.errors import ConfigError
    from fedcue.record.files import write_text

    if table is not None:
        _check_place(table)
    if client is not None and priors is not None:
        raise ConfigError("Give --client or --priors, not both.")
    if labelled is not None and priors != "em":
        raise ConfigError("--labelled counts images beside those given: give --priors em, too.")
    with busy("loading the model"):
        from fedcue.after.files import doubted, file_scores, find_images
        from fedcue.after.predict import load

        model = load(folder, trust or (), fetch=fetch)
    number, paths = model.client_called(client), find_images(images)
    if priors == "em":
        known = None if labelled is None else _by_class(labelled, model.classes)
        given: list[float] | None = model.estimated(file_scores(model, paths, skip=skip), known)
    else:
        given = None if priors is None else _by_class(Path(priors), model.classes)
        if len(paths) > 1 and doubted(model, paths, given, number, skip=skip):
            log.warning("These images do not look as if their classes had the priors given. Try --priors em.")
    rows = _classified(model, paths, given, number, details=table is None, skip=skip)
    if table is not None:
        write_text(table, _as_csv(rows), escape=True)
    elif as_json:
        typer.echo(json.dumps([_with_details(row, model.classes) for row in rows]))
    else:
        _print(rows, model.classes)


def _check_place(table: Path) -> None:
    """Refuse a table that cannot be written before any image is classified."""
    from fedcue.errors import ConfigError
    from fedcue.record.files import check_output

    check_output(table)
    if not os.access(table.parent, os.W_OK):
        raise ConfigError(
            f"--csv {table} cannot be written: look at the folder {table.parent}. Give the name of a new "
            "file in a folder that is there."
        )


def _classified(
    model: Model,
    paths: Sequence[Path],
    priors: Sequence[float] | None,
    client: int | None,
    *,
    details: bool,
    skip: bool,
) -> list[FilePrediction]:
    """Classify files with a progress display; report the speed at the end."""
    from fedcue.after.files import predict_files

    console, started = Console(stderr=True), time.perf_counter()
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(paths))
        rows = list(
            predict_files(
                model,
                paths,
                priors,
                client,
                details=details,
                skip=skip,
                progress=lambda n: bar.advance(task, n),
            )
        )
    seconds = time.perf_counter() - started
    console.print(
        f"{many(len(rows), 'image')} in {seconds:.1f} s: {len(rows) / seconds:.0f} images/s", highlight=False
    )
    return rows


def _as_csv(rows: Sequence[FilePrediction]) -> str:
    from fedcue.record.files import without_formula

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "class", "probability"])
    for row in rows:
        writer.writerow(
            [without_formula(str(row.path)), without_formula(row.label), f"{row.probability:.6f}"]
        )
    return text.getvalue()


def _with_details(row: FilePrediction, classes: tuple[str, ...]) -> dict[str, Any]:
    return row.row() | {name: _shares(values, classes) for name, values in row.details.items()}


def _print(rows: Sequence[FilePrediction], classes: tuple[str, ...]) -> None:
    names = list(rows[0].details) if rows else []
    table = Table(Column("image", overflow="fold"), "class", "probability", *names, box=None)
    for row in rows:
        shares = [_shares(row.details[name], classes) for name in names]
        weights = [", ".join(f"{k} {v:.0%}" for k, v in list(own.items())[:3]) for own in shares]
        table.add_row(*map(_plain, (str(row.path), row.label, f"{row.probability:.1%}", *weights)))
    Console(soft_wrap=True).print(table)


def _plain(text: str) -> str:
    """Return a name from data as the terminal may show it."""
    return escape(printable(text))


def _shares(weights: Any, classes: tuple[str, ...]) -> dict[str, float]:
    """Return the weights of one image, largest first, zeros left out.

    ``[L, C]`` are weights of classes, averaged over blocks; ``[K]`` are weights of groups, called by number.
    """
    by_class = weights.ndim == 2
    mean = weights.mean(0).tolist() if by_class else weights.tolist()
    names = classes if by_class else tuple(map(str, range(len(mean))))
    ordered = sorted(zip(mean, names, strict=True), reverse=True)
    return {name: weight for weight, name in ordered if weight > 0}


def _by_class(path: Path, classes: tuple[str, ...]) -> list[float]:
    from fedcue.errors import ConfigError, unknown
    from fedcue.foreign import STRANGE, text_of

    try:
        given = json.loads(text_of(path))
        if isinstance(given, dict):
            for name in given:
                if name not in classes:
                    raise ConfigError(unknown("class", str(name), classes))
            given = [given.get(name, 0.0) for name in classes]
        if not isinstance(given, list):
            raise TypeError(f"it holds {type(given).__name__}")
        return [float(value) for value in given]
    except STRANGE as error:
        raise ConfigError(f"{path} is not a JSON list or object of numbers by class: {error}.") from error
